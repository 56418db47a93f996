"""The forty jobs: a real training of two ranks on two hosts for each, and the verdicts of ``hang`` and ``hang --watch``.

``python -m tests.hang.forty [NAME ...]`` prints one line per job and ends with 1 if any verdict is not the expected one.
It takes about a quarter of an hour, so it is not a part of the test suite.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.program import run_in, start_in
from tests.hang.running import cut, with_spy
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter

SCRIPT = Path(__file__).with_name("forty.txt")
PATIENCE_S = 120.0
RANK = "[-]u /root/train.py"

Verdicts = frozenset[str]
NO_HANG: Verdicts = frozenset({"slow", "not-hanging", "unknown"})
AWAITED: Verdicts = frozenset({"slow", "not-hanging", "outside-nccl"})
"""For ranks at uneven work that looks the same as standing still: the awaited rank may be named."""
STUCK: Verdicts = frozenset({"outside-nccl"})
GONE: Verdicts = frozenset({"gone"})


@dataclass(frozen=True)
class Job:
    """A job: what a rank does in each step, what is done to it from outside, and the expected verdicts.

    Attributes:
        step: body of the training's ``step(rank, number)``.
        hang: verdicts of ``hang`` that are right; none if the job ends at once, so that it is only watched.
        end: verdicts of ``hang --watch`` that are right for its end or its fault; none if it is not watched.
        act: done to it from outside, once it runs.
        options: further options of torchrun.
        settle_s: seconds from the act, or from the first step, until ``hang``; if negative, from the start.
    """

    step: str = "time.sleep(0.1)"
    hang: Verdicts = frozenset()
    end: Verdicts = frozenset()
    act: Callable[[Lab], None] | None = None
    options: tuple[str, ...] = ()
    settle_s: float = 3.0


def at_rank_1(command: str) -> Callable[[Lab], None]:
    return lambda lab: _run(lab.hosts[1], command)


def everywhere(command: str) -> Callable[[Lab], None]:
    def act(lab: Lab) -> None:
        for host in lab.hosts:
            _run(host, command)

    return act


def _run(host: LabHost, command: str) -> None:
    host.run(command)


def signalled(name: str) -> Job:
    return Job(end=GONE, act=at_rank_1(f"pkill -{name} -f '{RANK}'"))


BUSY = "deadline = time.monotonic() + {}\nwhile time.monotonic() < deadline: sum(range(1000))"
MEMORY_GROUP = (
    "mkdir -p /sys/fs/cgroup/forty && echo 400M > /sys/fs/cgroup/forty/memory.max && "
    "echo 0 > /sys/fs/cgroup/forty/memory.swap.max; "
    f"pgrep -f '{RANK}' > /sys/fs/cgroup/forty/cgroup.procs; touch /run/eat"
)


def on(rank: int, body: str) -> str:
    return f"if rank == {rank}:\n" + "\n".join(f"    {line}" for line in body.splitlines())


JOBS = {
    "fast steps": Job("pass", NO_HANG),
    "gradient accumulation": Job(BUSY.format(15), NO_HANG),
    "first step": Job("if number == 0: time.sleep(25)\ntime.sleep(0.1)", NO_HANG, settle_s=-8.0),
    "imports slowly": Job("time.sleep(0.1)", NO_HANG, settle_s=-2.0),
    "DistributedDataParallel": Job("ddp(number)", NO_HANG),
    "compiles": Job("compiled(number)", NO_HANG),
    "compiles on rank 0": Job(on(0, "compiled(number)"), NO_HANG),
    "loader 2 s": Job("time.sleep(2)", NO_HANG),
    "loader 20 s": Job("time.sleep(20)", NO_HANG),
    "loader 60 s": Job("time.sleep(60)", NO_HANG),
    "loader's workers 10 s": Job("loaded(10)", NO_HANG),
    "uneven 2 s": Job(on(1, "time.sleep(2)"), AWAITED),
    "uneven 6 s": Job(on(1, "time.sleep(6)"), AWAITED),
    "uneven 12 s": Job(on(1, "time.sleep(12)"), AWAITED),
    "uneven 30 s": Job(on(1, "time.sleep(30)"), AWAITED),
    "uneven 60 s": Job(on(1, "time.sleep(60)"), AWAITED),
    "uneven computing 2 s": Job(on(1, BUSY.format(2)), NO_HANG),
    "uneven computing 15 s": Job(on(1, BUSY.format(15)), NO_HANG),
    "uneven computing 60 s": Job(on(1, BUSY.format(60)), NO_HANG),
    "checkpoint of rank 0": Job(on(0, "saved(15)"), NO_HANG),
    "checkpoint of all": Job("saved(15)", NO_HANG),
    "evaluation of rank 0, 15 s": Job(on(0, "evaluated(15)"), NO_HANG),
    "evaluation of rank 0, 60 s": Job(on(0, "evaluated(60)"), NO_HANG),
    "point to point": Job("passed_on(rank)", NO_HANG),
    "loader stuck on rank 1": Job(on(1, "loaded(86400)"), STUCK),
    "file stuck on rank 1": Job(on(1, "open('/run/fifo')"), STUCK),
    "all loaders stuck": Job("loaded(86400)", frozenset({"outside-nccl", "unknown"})),
    "rank 1 skips": Job("time.sleep(0.1)\nif rank == 1 and number == 5: dist.barrier()", frozenset({"different-collectives"})),
    "stopped": Job(hang=GONE, act=at_rank_1(f"pkill -STOP -f '{RANK}'")),
    "host lost": Job(hang=frozenset({"transport"}), settle_s=8.0),
    **{f"SIG{name}": signalled(name) for name in ("KILL", "SEGV", "ABRT", "BUS", "TERM", "INT", "HUP")},
    "exception of rank 1": Job("time.sleep(0.1)\nif rank == 1 and os.path.exists('/run/go'): raise ValueError(number)",
        end=GONE, act=everywhere("touch /run/go")),
    "exception of all": Job("time.sleep(0.1)\nif os.path.exists('/run/go'): raise ValueError(number)",
        end=GONE, act=everywhere("touch /run/go")),
    "out of memory": Job("time.sleep(0.1)\nif os.path.exists('/run/eat'): eaten()", end=GONE, act=at_rank_1(MEMORY_GROUP)),
    "ends well": Job(end=frozenset({"not-hanging"}), act=everywhere("echo 0 > /run/end")),
    "ends well, one after the other": Job("time.sleep(0.1)",
        end=frozenset({"not-hanging"}), act=everywhere("echo late > /run/end")),
    "ends with status 1": Job(end=GONE, act=everywhere("echo 1 > /run/end")),
    "torchrun starts again": Job(
        "time.sleep(0.1)\nif rank == 1 and os.path.exists('/run/go'): os.remove('/run/go'); os._exit(3)",
        NO_HANG, act=at_rank_1("touch /run/go"), options=("--max-restarts=3",), settle_s=25.0),
}  # fmt: skip


@contextmanager
def running(lab: Lab, job: Job) -> Iterator[None]:
    launchers = []
    body = "\n".join(f"    {line}" for line in job.step.splitlines())
    for number, host in enumerate(lab.hosts):
        host.run("rm -f /run/end /run/go /run/eat /run/step-*; [ -p /run/fifo ] || mkfifo /run/fifo")
        host.write("/root/train.py", SCRIPT.read_text().replace("    STEP", body))
        words = [interpreter(), "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", *job.options]
        words += [f"--node_rank={number}", f"--master_addr={lab.hosts[0].address}", "--master_port=29555"]
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        launchers.append(host.popen(f"exec {shlex.join([*words, '/root/train.py'])} >/run/train.log 2>&1", env=env))
    try:
        yield
    finally:
        for one in launchers:
            one.kill()
            one.wait()
        for host in lab.hosts:
            host.run("pkill -CONT -f '[t]rain.py'; pkill -KILL -f '[t]rain.py'", check=False)


def until_step(lab: Lab) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(host.run("ls /run/step-* 2>/dev/null", check=False).stdout for host in lab.hosts):
        assert time.monotonic() < deadline, lab.hosts[0].read("/run/train.log")
        time.sleep(0.3)


def examined(lab: Lab) -> tuple[str, str]:
    done = run_in(lab.controller, "hang", "hosts.yaml", "-o", "json")
    document = json.loads(done.stdout)
    return document["verdict"], document["message"]


def watched(lab: Lab, job: Job) -> tuple[str, str]:
    words = ("hang", "hosts.yaml", "--watch", "--every", "2", "-v", "-o", "json")
    with start_in(lab.controller, *words) as process:
        while "progress" not in (line := process.stderr.readline()):
            assert line, "the watch ended"
        assert job.act is not None
        job.act(lab)
        out, _ = process.communicate()
    document = json.loads(out)
    return document["verdict"], document["message"]


def tried(lab: Lab, job: Job) -> Iterator[tuple[str, Verdicts, str, str]]:
    """Yield the command, the right verdicts, the verdict and its sentence."""
    with running(lab, job):
        if job.settle_s < 0:
            time.sleep(-job.settle_s)
            yield "hang", job.hang, *examined(lab)
            return
        until_step(lab)
        if job.end:
            yield "--watch", job.end, *watched(lab, job)
            return
        if job.act is not None:
            job.act(lab)
        if "transport" in job.hang:
            with cut(lab.hosts[1]):
                time.sleep(job.settle_s)
                yield "hang", job.hang, *examined(lab)
            return
        time.sleep(job.settle_s)
        yield "hang", job.hang, *examined(lab)


def main(names: list[str]) -> int:
    """Try these jobs, or all; return 1 if a verdict was wrong."""
    wrong = 0
    with Lab.up(2) as lab:
        with_spy(lab)
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        for name in names or JOBS:
            for command, right, verdict, message in tried(lab, JOBS[name]):
                wrong += verdict not in right
                print(  # noqa: T201 - a script
                    f"{'ok   ' if verdict in right else 'WRONG'} {name:32} {command:8} {verdict:14} {message}",
                    flush=True,
                )
    print(f"{len(names or JOBS)} jobs, {wrong} wrong verdicts")  # noqa: T201 - a script
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
