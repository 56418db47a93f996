from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path

import pytest

from nccl_doctor.probe.facts import host
from nccl_doctor.probe.facts.software import SIZE_LIMIT, file_text, read_config_files, read_environment
from nccl_doctor.probe.tools import Unavailable, port_range
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
    file: str, text: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert host.container(str(tmp_path)) == expected


def test_a_pods_environment_says_kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert host.container(str(tmp_path)) == "kubernetes"


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 123456)
    assert host.identity()["user"] == "123456"


def test_no_limit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {resource.RLIMIT_NOFILE: (1024, 4096), resource.RLIMIT_MEMLOCK: (65536, resource.RLIM_INFINITY)}
    given[resource.RLIMIT_AS] = (2**30, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", given.__getitem__)
    expected = ResourceLimits(
        nofile_soft=1024, nofile_hard=4096, memlock_soft=65536, memlock_hard=None, address_space=2**30
    )
    assert ResourceLimits.model_validate(host.limits("/nowhere", "/nowhere")) == expected


@pytest.mark.parametrize(
    ("powers", "users", "may"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("0000000000004000", "0 0 4294967295", True),
        ("00000000a80425fb", "0 0 4294967295", False),  # root in a container of Docker's
        ("000001ffffffffff", "0 100000 65536", False),  # root of a user namespace, as in a rootless container
        ("0000000000000000", "0 0 4294967295", False),
    ],
)
def test_who_is_not_bound_by_the_limit(powers: str, users: str, may: bool, tmp_path: Path) -> None:
    (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t0000000000000000\nCapEff:\t{powers}\n")
    (tmp_path / "uid_map").write_text(f"{users:>30}\n")
    assert host.limits("/nowhere", str(tmp_path))["ipc_lock"] is may


def test_memory_that_cant_be_pinned_is_what_the_kernel_counts(tmp_path: Path) -> None:
    """As on a GB10 with Linux 7.0 (NVIDIA/NV-Kernels pull request 591)."""
    (tmp_path / "meminfo").write_text(
        "MemFree:        92274688 kB\nCmaTotal:              0 kB\nCmaFree:          940604 kB\n"
    )
    assert host.limits(str(tmp_path / "meminfo"))["cma_kib"] == [0, 940604]


def test_shared_memory_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert host.shm(str(tmp_path / "shm")) == {"total_bytes": 0, "free_bytes": 0, "problem": "missing"}
    assert (there := host.shm(str(tmp_path)))["total_bytes"] > 0
    assert there["problem"] is None


def test_the_port_range_and_its_reserved_ports(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="ip_local_port_range can't be read"):
        port_range(str(tmp_path))
    (tmp_path / "ip_local_port_range").write_text("1024\t65535\n")
    (tmp_path / "ip_local_reserved_ports").write_text("29500,30000-30010\n")
    assert port_range(str(tmp_path)) == {"low": 1024, "high": 65535, "reserved": "29500,30000-30010"}


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
