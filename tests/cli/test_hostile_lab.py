"""A hostile user's process and a hostile container beside a real job: root that looks runs nothing of theirs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe import tools
from tests.cli.doctor import doctor
from tests.hang.running import BAD, PORT, Training, hang, release
from tests.lab.cluster import Lab
from tests.lab.host import LabHost

pytestmark = pytest.mark.lab

MALLORY = 1001
HIDE = f"mount --bind /dev/null {Path(sys.executable).with_name('py-spy')}"
CANARY = "/run/canary"
"""Each planted program makes a file there that bears its name and who ran it."""
NAMES = sorted({*tools.PROGRAMS, "sh", "rm", "sleep", "df", "readlink", "python3", "docker", "podman"})
PLANT = """\
import os, sys
folder, owner = sys.argv[1], int(sys.argv[2])
os.makedirs(folder, exist_ok=True)
os.chown(folder, owner, owner)
for name in sys.argv[3:]:
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(f"#!/bin/bash\\n/usr/bin/id -u >> /run/canary/{name}\\n")
    os.chmod(path, 0o755)
    os.chown(path, owner, owner)
"""
CLAIM = """\
import os, sys
folder, *claims = sys.argv[1:]
os.chdir(folder)
argv = [folder + "/python3", "-c", "import time; time.sleep(86400)"]
os.execve(sys.executable, argv, {"PATH": folder, **dict(one.split("=", 1) for one in claims)})
"""
"""A process that says that it was started from that folder, stands in it, and has nothing else on its PATH."""
CONTAINER = """\
mount -t tmpfs tmpfs /opt
python=$1; plant=$2; claim=$3; shift 3
$python -c "$plant" /opt/evil 0 {names}
ln -s /root/secret /opt/evil/trace_0
exec setpriv --bounding-set=-all --inh-caps=-all $python -c "$claim" /opt/evil "$@"
"""
"""Root without any capability, in mount and PID namespaces of its own."""


def claims(lab: Lab, *, port: int = PORT, rank: int = BAD, world: int = 4, folder: str) -> list[str]:
    told = {
        "RANK": rank,
        "LOCAL_RANK": 1,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_",
    }
    return [f"{name}={value}" for name, value in told.items()]


def running(host: LabHost, folder: str, count: int) -> list[int]:
    """The PIDs there of what claims to have been started from the folder, as many as there are to be."""

    def found() -> list[int]:
        return [pid for pid, line in host.processes() if line.startswith(f"{folder}/python3")]

    host.wait_until(lambda: len(found()) == count, f"{count} processes of {folder}")
    return found()


def hostile_user(lab: Lab, host: LabHost) -> int:
    """Says that it is the very rank for which all wait; a link of its own leads to a program of root's, too."""
    folder = "/home/mallory"
    host.run([sys.executable, "-c", PLANT, folder, str(MALLORY), *NAMES])
    host.write("/usr/local/share/of-root", f"#!/bin/bash\necho >> {CANARY}/linked\n", 0o755)
    host.run(f"ln -sf /usr/local/share/of-root {folder}/py-spy; ln -s /root/secret {folder}/trace_{BAD}")
    host.run(f"mkfifo -m 600 /root/pipe; ln -s /root/pipe {folder}/pipe_{BAD}.pipe")
    user = ["setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups"]
    host.background([*user, sys.executable, "-c", CLAIM, folder, *claims(lab, folder=folder)])
    return running(host, folder, 1)[0]


def hostile_container(lab: Lab, host: LabHost) -> list[int]:
    """One that says that it is the victim's rank, and one with a job of its own."""
    script = CONTAINER.format(names=" ".join(NAMES))
    for told in (claims(lab, folder="/opt/evil"), claims(lab, port=4444, rank=0, world=1, folder="/opt/evil")):
        inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh"]
        host.background([*inside, sys.executable, PLANT, CLAIM, *told])
    return running(host, "/opt/evil", 2)


@pytest.fixture(scope="module")
def job() -> Iterator[Training]:
    """Alice's, whose rank 3 sleeps; a container is on node1, and mallory on node2, where root's PATH begins with theirs.

    Alice's environment has no py-spy of its own.
    """
    with Lab.up(2) as lab:
        for host in lab.hosts:
            host.run(f"mkdir -m 1777 {CANARY}; echo secret > /root/secret; chmod 600 /root/secret; {HIDE}")
        training = Training(lab, user="alice", recorder=False)
        training.bring("sleep")
        one, two = lab.hosts
        two.write("/root/.bashrc", "export PATH=/home/mallory:.:$PATH\n")
        hostile_user(lab, two)
        one.run("for one in $(seq 500); do /bin/true; done")  # so that no PID is a rank's on both hosts
        hostile_container(lab, one)
        yield training
        release(training, "sleep")
        training.end()


def canaries(lab: Lab) -> dict[str, list[str]]:
    return {host.name: host.run(f"ls {CANARY}").stdout.split() for host in lab.hosts}


UNTOUCHED: dict[str, list[str]] = {"node1": [], "node2": []}


def test_the_victims_job_is_looked_at_and_no_program_of_theirs_is_run(job: Training) -> None:
    for options in ([], ["--native"]):
        code, told = hang(job.lab, *options)
        assert canaries(job.lab) == UNTOUCHED
        assert {one["rank"]: one["pid"] for one in told["ranks"]} == job.pids()
        assert sorted(one.partition(" of ")[2] for one in told["other_jobs"]) == [
            "1 ranks (1 rank)",
            "4 ranks of root (1 rank)",
            f"4 ranks of uid {MALLORY} (1 rank)",
        ]
        if not options:  # a busy machine may not read native stacks in time
            assert (code, told["verdict"]) == (1, "outside-nccl")
            assert [one["rank"] for one in told["ranks"] if one["behind"]] == [BAD]


@pytest.mark.parametrize("whose", ["/home/mallory", "/opt/evil"])
def test_theirs_are_looked_at_and_nothing_of_roots_is_read_or_written(job: Training, whose: str) -> None:
    one, two = job.lab.hosts
    reader = two.popen("cat /root/pipe > /run/heard")
    for pid in running(two, whose, 1) if whose == "/home/mallory" else running(one, whose, 2):
        job.lab.controller.run("rm -f /root/seen.json")
        _, told = hang(job.lab, "--pid", str(pid), "--dump", "--save", "seen.json")
        assert canaries(job.lab) == UNTOUCHED
        assert [one["pid"] for one in told["ranks"] if one["pid"]] == [pid]
        seen = json.loads(job.lab.controller.read("/root/seen.json"))
        assert recorders(seen) == {None}
    two.run("echo end > /root/pipe")
    reader.wait()
    assert two.read("/run/heard") == "end\n"


def recorders(seen: dict[str, Any]) -> set[Any]:
    """What was had of the ranks' recorders, where anything was."""
    looks = [look for host in seen["hosts"] for look in host["looks"]]
    return {json.dumps(rank["recorder"]) if rank["recorder"] else None for look in looks for rank in look["ranks"]}


def test_a_check_runs_no_program_of_theirs(job: Training) -> None:
    run = doctor(job.lab, "check")
    assert all(host["reached"] for host in run.report["hosts"])
    assert canaries(job.lab) == UNTOUCHED
