from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path

import pytest

from nccl_doctor.probe.facts import host
from nccl_doctor.probe.facts.software import SIZE_LIMIT, file_text, read_config_files, read_environment
from nccl_doctor.probe.tools import Unavailable
from nccl_doctor.snapshot.system import ResourceLimits


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", 'engine="podman"', "podman"),
        (".singularity.d/Singularity", "", "apptainer"),
        ("run/systemd/container", "lxc\n", "lxc"),
        ("run/secrets/kubernetes.io/token", "", "kubernetes"),
        ("proc/1/cgroup", "12:pids:/kubepods/besteffort/pod1\n", "kubernetes"),
        ("proc/1/cgroup", "1:name=systemd:/docker/0123abcd\n", "docker"),
        ("proc/1/cgroup", "0::/init.scope\n", None),
    ],
)
def test_a_container_is_known_by_its_marks(
    file: str, text: str, expected: str | None, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    assert host.container() == expected


def test_a_pods_environment_says_kubernetes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.container() is None, root
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert host.container() == "kubernetes"


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 123456)
    assert host.identity()["user"] == "123456"


def test_no_limit_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {resource.RLIMIT_NOFILE: (1024, 4096), resource.RLIMIT_MEMLOCK: (65536, resource.RLIM_INFINITY)}
    given[resource.RLIMIT_AS] = (2**30, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", given.__getitem__)
    expected = ResourceLimits(
        nofile_soft=1024, nofile_hard=4096, memlock_soft=65536, memlock_hard=None, address_space=2**30
    )
    assert ResourceLimits.model_validate(host.limits()) == expected


def test_shared_memory_has_a_size(root: Path) -> None:
    (root / "dev/shm").mkdir(parents=True)
    assert (found := host.shm())["total_bytes"] > 0
    assert found["problem"] is None


def test_only_variables_that_bear_on_training_are_told() -> None:
    environ = {
        "NCCL_SOCKET_IFNAME": "eno1",
        "MASTER_ADDR": "node1",
        "RANK": "0",
        "LD_LIBRARY_PATH": "/opt/lib",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "RANKING": "1",
    }
    assert sorted(read_environment(environ)) == ["LD_LIBRARY_PATH", "MASTER_ADDR", "NCCL_SOCKET_IFNAME", "RANK"]


def test_the_places_of_nccls_files_are_read_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = pwd.struct_passwd(("ann", "x", 1, 1, "", str(tmp_path), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: own)
    monkeypatch.setenv("HOME", "/nowhere/else")  # NCCL does not go by it
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "ssh.conf"))
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    found = read_config_files({"NCCL_CONF_FILE": str(tmp_path / "job.conf")})
    assert [(Path(row["path"]).name, row["text"]) for row in found[:2]] == [
        ("job.conf", None),
        (".nccl.conf", "NCCL_DEBUG=INFO\n"),
    ]
    assert found[2]["path"] == "/etc/nccl.conf"
    assert Path(read_config_files({})[0]["path"]).name == "ssh.conf"


def test_a_file_is_bounded_and_anything_else_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * (SIZE_LIMIT + 9))
    assert len(file_text(str(tmp_path / "long")) or "") == SIZE_LIMIT
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path / "fifo", tmp_path):
        with pytest.raises(Unavailable, match=f"{other.name} is not a regular file"):
            file_text(str(other))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Unavailable, match="loop can't be read: Too many levels of symbolic links"):
        file_text(str(tmp_path / "loop"))
    assert file_text(str(tmp_path / "long" / "below")) is None


def test_a_users_threads_count_against_ulimit_u(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid() or 4242
    for pid, threads in (("11", 3), ("12", 1), ("self", 9)):
        for thread in range(threads):
            (root / "proc" / pid / "task" / str(thread)).mkdir(parents=True)
        os.chown(root / "proc" / pid, user, -1)
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (64, resource.RLIM_INFINITY))
    assert host.read_tasks() == [{"name": "ulimit -u", "most": 64, "used": 4}]
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert host.read_tasks() == []
