"""One host that differs: limits, shared memory, code, versions, the login shell; and snapshots without secrets."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.doctor import doctor
from tests.lab.cluster import Lab
from tests.lab.faults import fault

pytestmark = pytest.mark.lab

NO_SMOKE = ("check", "--no-smoke")


def test_few_files(fresh_lab: Lab) -> None:
    fault("nofile-low")(fresh_lab, fresh_lab.host("node2"))
    run = doctor(fresh_lab, *NO_SMOKE)
    assert run.names == ["nofile-low"]
    assert run.first["hosts"] == ["node2"]
    assert run.first["facts"]["nofile_soft"] == 256
    assert run.code == 0
    assert doctor(fresh_lab, *NO_SMOKE, "--fail-on", "warning").code == 1


def test_small_shared_memory_is_mended_by_the_line_that_is_printed(fresh_lab: Lab) -> None:
    node = fresh_lab.host("node2")
    node.run("rm -f /.dockerenv /run/.containerenv")  # a container's owner would have to enlarge it from outside
    fault("shm-small")(fresh_lab, node)
    run = doctor(fresh_lab, *NO_SMOKE)
    assert run.names == ["shm-small"]
    assert run.first["hosts"] == ["node2"]
    (command,) = run.first["fix"]["commands"]
    fresh_lab.host(command["host"]).run(command["command"])
    assert doctor(fresh_lab, *NO_SMOKE).names == []


def test_code_that_differs_is_listed(fresh_lab: Lab) -> None:
    for host in fresh_lab.hosts:
        host.write("/root/train.py", "print('the same')\n")
        host.write("/root/src/model.py", "layers = 2\n")
        host.write("/root/src/__pycache__/model.cpython-311.pyc", host.name)
    hosts = fresh_lab.hosts_file(same=["train.py", "/root/src"])
    assert doctor(fresh_lab, *NO_SMOKE, hosts=hosts).names == []

    fresh_lab.host("node3").write("/root/src/model.py", "layers = 3\n")
    run = doctor(fresh_lab, *NO_SMOKE, hosts=hosts)
    assert run.names == ["code-mismatch"]
    assert run.first["hosts"] == ["node3"]
    assert run.first["facts"]["files"] == ["model.py"]
    assert run.code == 1


def test_a_checkout_is_compared_by_its_commit_and_what_was_changed(fresh_lab: Lab) -> None:
    identity = "-c user.name=lab -c user.email=lab@lab.invalid"
    date = "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z"
    for host in fresh_lab.hosts:
        host.write("/root/repo/train.py", "steps = 10\n")
        host.run(f"cd repo && git init -q . && git add . && {date} git {identity} commit -qm first")
    hosts = fresh_lab.hosts_file(same=["repo"])
    assert doctor(fresh_lab, *NO_SMOKE, hosts=hosts).names == []

    fresh_lab.host("node2").write("/root/repo/train.py", "steps = 11\n")
    run = doctor(fresh_lab, *NO_SMOKE, hosts=hosts)
    assert run.names == ["code-mismatch"]
    assert run.first["hosts"] == ["node2"]
    assert run.first["facts"]["files"] == ["train.py"]


@pytest.fixture
def other_torch(bare_python: str) -> Iterator[str]:
    """An interpreter whose torch says that it is another release: what the probe reads of it is metadata."""
    (packages,) = (Path(bare_python).parents[1] / "lib").glob("python3*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text("")
    (packages / "torch" / "version.py").write_text(
        "__version__ = '2.8.0+cu128'\ncuda: str | None = '12.8'\nhip = None\n"
    )
    (packages / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    library = packages / "nvidia" / "nccl" / "lib"
    library.mkdir(parents=True)
    (library / "libnccl.so.2").write_bytes(b"")
    yield bare_python
    for name in ("torch", "nvidia", "nvidia_nccl_cu12-2.27.3.dist-info"):
        shutil.rmtree(packages / name)


def test_another_torch_on_one_host(lab: Lab, other_torch: str) -> None:
    hosts = lab.hosts_file(hosts=["node1", {"name": "node2", "python": other_torch}, "node3"])
    run = doctor(lab, *NO_SMOKE, "--only", "version-mismatch", hosts=hosts)
    assert run.names == ["version-mismatch"]
    assert run.first["hosts"] == ["node2"]
    versions = run.first["facts"]["versions"]
    assert versions["torch"]["2.8.0"] == ["node2"]
    assert versions["NCCL"]["2.27.3"] == ["node2"]
    assert run.code == 1


def test_what_only_a_login_shell_has(fresh_lab: Lab, bare_python: str) -> None:
    # Asked where torch is not found, among others: it may be that only a login shell finds it.
    only = (*NO_SMOKE, "--only", "login-environment-differs")
    guard = 'case $- in *i*) ;; *) return ;; esac\necho "Welcome"\n'
    node = fresh_lab.host("node2")
    node.write("/root/.profile", ". ~/.bashrc\n")
    node.write("/root/.bashrc", f"{guard}export NCCL_DEBUG=INFO\n")
    run = doctor(fresh_lab, *only, hosts=fresh_lab.hosts_file(python=bare_python))
    assert run.names == ["login-environment-differs"]
    assert run.first["hosts"] == ["node2"]
    assert run.code == 0
    said = fresh_lab.hosts_file(python=bare_python, env={"NCCL_DEBUG": "INFO"})
    assert doctor(fresh_lab, *only, hosts=said).names == []

    node.write("/root/.bashrc", f"{guard}export PATH={Path(sys.executable).parent}:$PATH\n")
    found = doctor(fresh_lab, *only, hosts=fresh_lab.hosts_file(python="python3"))
    assert found.first["hosts"] == ["node2"]
    assert str(Path(sys.executable).parent) in found.first["evidence"][0]


PLANTED = {
    "WANDB_API_KEY": "wandb-secret-0123456789abcdef",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "NCCL_SECRET_TOKEN": "nccl-secret-value",
    "TORCH_HUB_PASSWORD": "hub-secret-value",
}
ARGUMENTS = [
    "--token",
    "argument-secret",
    "--api-key=another-secret",
    "-psecret",
    "https://alice:url-secret@example.org",
]


def test_a_snapshot_holds_no_secret_and_gives_the_same_verdict(fresh_lab: Lab) -> None:
    node = fresh_lab.host("node1")
    node.write("/root/.nccl.conf", "NCCL_DEBUG=WARN\nMY_SECRET=conf-secret\n")
    code = "import socket, time; s = socket.create_server(('', 29500)); time.sleep(600)"
    node.write("/home/alice/train.py", code)
    holder = shlex.join([sys.executable, "/home/alice/train.py", *ARGUMENTS])
    node.run(f"setsid {holder} </dev/null >/dev/null 2>&1 & echo $!", user="alice")
    node.wait_until(lambda: ("0.0.0.0", 29500) in node.listeners(), "the listener")
    hosts = fresh_lab.hosts_file(env=PLANTED)

    first = doctor(fresh_lab, *NO_SMOKE, "--save", "seen.json", hosts=hosts)
    assert "port-in-use" in first.names
    text = fresh_lab.controller.read("/root/seen.json")
    assert "/train.py" in text
    secrets = [*PLANTED.values(), "argument-secret", "another-secret", "psecret", "url-secret", "conf-secret", "alice"]
    assert [secret for secret in secrets if secret in text] == []
    assert "left out user names (1), " in first.stderr
    assert "HF_TOKEN" in first.stderr

    again = json.loads(fresh_lab.controller.run("nccl-doctor check --from seen.json -o json", check=False).stdout)
    assert [one["outcome"] for one in again["checks"]] == [one["outcome"] for one in first.report["checks"]]
    assert [one["hosts"] for one in again["diagnoses"]] == [one["hosts"] for one in first.report["diagnoses"]]

    doctor(fresh_lab, *NO_SMOKE, "--save", "whole.json", "--save-whole", hosts=hosts)
    assert PLANTED["HF_TOKEN"] in fresh_lab.controller.read("/root/whole.json")


def test_diff_says_what_changed_and_lists_serve_the_next_run(fresh_lab: Lab) -> None:
    lists = ("--write-hosts", "passed.txt", "--write-failed", "failed.txt")
    assert doctor(fresh_lab, *NO_SMOKE, "--save", "a.json").names == []
    same = fresh_lab.controller.run("nccl-doctor diff a.json a.json", check=False)
    assert (same.returncode, same.stdout) == (0, "Nothing changed.\n")

    fault("nofile-low")(fresh_lab, fresh_lab.host("node2"))
    doctor(fresh_lab, *NO_SMOKE, "--save", "b.json", "--fail-on", "warning", *lists)
    found = fresh_lab.controller.run("nccl-doctor diff a.json b.json -o json", check=False)
    document = json.loads(found.stdout)
    assert found.returncode == 1
    changed = {(one["what"], tuple(one["hosts"])) for one in document["changes"]}
    assert ("limits.nofile_soft", ("node2",)) in changed
    assert [one["name"] for one in document["diagnoses"]["new"]] == ["nofile-low"]

    assert fresh_lab.controller.read("/root/passed.txt") == "node1\nnode3\n"
    assert fresh_lab.controller.read("/root/failed.txt") == "node2\n"
    listed = fresh_lab.controller.run("nccl-doctor hosts passed.txt -o json")
    assert [node["name"] for node in json.loads(listed.stdout)["nodes"]] == ["node1", "node3"]
