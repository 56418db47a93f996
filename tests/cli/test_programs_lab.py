"""Which programs are executed on a host, as the kernel tells: the list of probe/tools.py, and what is named here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from nccl_doctor.probe import tools
from tests.cli.doctor import doctor
from tests.cli.holders import alive, hold, new_port
from tests.cli.program import run_in
from tests.hang.running import Training, hang
from tests.lab.cluster import Lab
from tests.lab.containers import end, prepare, start
from tests.lab.host import LabHost
from tests.lab.requirements import find_tool

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("users_python")]

TRACE = "/run/trace"
LOGIN = {
    "/usr/sbin/sshd": "the server, which starts itself anew for each connection",
    "/usr/lib/openssh/sshd-session": "the same from OpenSSH 9.8 on",
    "/usr/lib/openssh/sshd-auth": "likewise",
    "/bin/bash": "the login's shell, by passwd(5)",
    "/usr/bin/env": "the variables of a login shell, which is asked where torch did not show itself in time",
    "/usr/bin/id": "which Debian's /etc/profile starts there",
}
OURS = {
    sys.executable: "the interpreter that the hosts file names: the probe, torch's place, torchrun and its ranks",
    "/bin/sh": "the keeper of a scratch folder (probe/children.py)",
    "/usr/bin/rm": "which it removes",
    "/usr/bin/sleep": "and between two tries",
    "memory": "py-spy, sent along or copied; in a container's test podman, which starts itself anew from memory",
}
CONTAINERS = {
    "/usr/bin/podman": "the runtime that the hosts file names",
    "/usr/bin/conmon": "its monitor",
    "/usr/bin/crun": "and the runtime below it",
    **dict.fromkeys(("/usr/bin/cat", "/usr/bin/df", "/usr/bin/readlink"), "the host around a container"),
}
EXECUTION = re.compile(r'^execve(?:at\([^,]+, )?\(?"((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass
class Traced:
    """A host whose sshd, and all that comes of it, is traced."""

    host: LabHost

    def executed(self) -> set[str]:
        """Every program that was executed or tried since the last call."""
        text = self.host.run(f"cat {TRACE}.*; rm -f {TRACE}.*").stdout
        found = set(EXECUTION.findall(text))
        assert text.count("execve") == len(EXECUTION.findall(text)), text
        # a descriptor's path, or none, as execveat(2) takes a descriptor itself
        return {"memory" if re.fullmatch(r"(?:/proc/(?:self|[0-9]+)/fd/[0-9]+)?", path) else path for path in found}


def listed(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in tools.PROGRAMS and folder in (*tools.SYSTEM, *tools.MORE)


def strange(executed: set[str]) -> set[str]:
    return {path for path in executed if path not in LOGIN and path not in OURS and not listed(path)}


def there(host: LabHost) -> bool:
    return host.run("test -e /run/sshd.pid", check=False).returncode == 0


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Lab, Traced]]:
    with Lab.up(2) as lab:
        host = lab.hosts[1]
        host.run("kill $(cat /run/sshd.pid)")
        host.wait_until(lambda: not there(host), "the end of sshd")
        host.popen(
            [
                *("strace", "-ff", "--seccomp-bpf", "-qq", "-s", "4096", "-e", "trace=execve,execveat"),
                *("-e", "signal=none", "-o", TRACE, find_tool("sshd"), "-D"),
            ],
            stderr=subprocess.DEVNULL,
        )
        host.wait_until(lambda: there(host), "the start of sshd")
        yield lab, Traced(host)


def test_a_check(traced: tuple[Lab, Traced]) -> None:
    lab, two = traced
    two.executed()
    run = doctor(lab, "check")
    # on a busy machine a plain interpreter may import torch for longer than facts wait for its version
    assert (run.code in (0, 3), run.names) == (True, [])
    executed = two.executed()
    assert strange(executed) == set()
    assert {sys.executable, "/bin/sh"} <= executed
    assert any(path.endswith("/nft") for path in executed)


def test_a_check_as_a_user(traced: tuple[Lab, Traced]) -> None:
    lab, two = traced
    two.executed()
    assert doctor(lab, "check", "--no-smoke", "--user", "alice").report["hosts"][1]["reached"]
    assert strange(two.executed()) == set()


def test_a_look_at_a_job(traced: tuple[Lab, Traced]) -> None:
    """With each way to read stacks; the job itself is not traced."""
    lab, two = traced
    job = Training(lab)
    two.executed()
    for options in ([], ["-x", "node1", "--pause"], ["-x", "node1", "--native", "--dump"]):
        code, told = hang(lab, *options)
        assert code == 0, told["verdict"]
    executed = two.executed()
    job.end()
    assert strange(executed) == set()
    assert "memory" in executed


def test_a_port_that_is_held(traced: tuple[Lab, Traced]) -> None:
    """A rank that a job left behind holds it, and is ended."""
    lab, two = traced
    two.executed()
    port = new_port()
    pid = hold(two.host, "keep = listen()", port)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    there = ("fix-port", str(port), "--hosts", "hosts.yaml", "--host", "node2", "-o", "json")
    assert run_in(lab.controller, *there).returncode == 1
    run_in(lab.controller, *there, "--kill", "--yes", "--force")
    assert alive(two.host, {pid}) == set()
    assert strange(two.executed()) == set()


def test_a_container(traced: tuple[Lab, Traced]) -> None:
    lab, two = traced
    for host in lab.hosts:
        prepare(host)
        start(host, "train", "--network=host", "--ipc=host")
    two.executed()
    run = doctor(lab, "check", "--no-smoke", hosts=lab.hosts_file(inside={"podman": "train"}))
    executed = two.executed()
    for host in lab.hosts:
        end(host, "train")
    assert run.code == 0, run.names
    assert strange(executed - set(CONTAINERS)) == set()
    assert "/usr/bin/podman" in executed
