"""What ``fix-port`` does: look, end a job, wait for the kernel, find a port that is free on every host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from nccl_doctor.collect.port_machine import Machine, sleep
from nccl_doctor.errors import DoctorError, NotReachedError
from nccl_doctor.model.ports import (
    LAST_PORT,
    Elsewhere,
    GpuUse,
    Holder,
    HolderJob,
    Identity,
    Member,
    PortReport,
    Socket,
    Suggestion,
)
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.shell import script

Tell = Callable[[str], None]
"""Shows what is waited for; the next call replaces it."""

POLL_S = 0.1
KILL_S = 5.0
"""What a process may take to go after SIGKILL: the kernel gives back its memory, a GPU's driver its own."""
SETTLE_S = 1.0
"""What sockets may take to go after their last process."""
MOST_WAIT_S = 300.0
"""For the kernel to give a port back, whatever a host says: a TIME_WAIT takes a minute."""
MOST_PROCESSES = 1 << 15
"""Of a job, with all that it started while it was ending."""
FIRST = 1024
FEW, MANY = 16, 512
"""Ports that a host is asked for at once: the first ones are mostly free, and each costs a trial."""
TRIALS = 2
"""How often free ports are tried from the other hosts, until it is said that none can be reached."""
WELL_KNOWN = frozenset(
    {
        *(2049, 2222, 3000, 3306, 4444, 5000, 5432, 5555, 6006, 6379, 6443, 6817, 6818, 6819, 7860, 8000, 8080, 8265),
        *(8443, 8787, 8786, 8888, 8889, 9000, 9090, 9100, 9400, 10001, 10250, 11211, 11434, 19999, 27017, 28028, 29400),
    }
)
"""Ports on which hosts of training clusters often run something, whether it runs now or not.

Among them NFS, Slurm's daemons, Ray, Dask, Kubernetes' agent, notebooks and dashboards, NCCL's own RAS (28028) and
torchrun's c10d rendezvous (29400).
"""


class Ended(NamedTuple):
    """What became of a job: PIDs that are gone, PIDs that still live, and why some were not signalled."""

    gone: tuple[int, ...]
    left: tuple[int, ...]
    denied: tuple[str, ...]


def look(machine: Machine, port: int | None, process: Identity | None, grace_s: float) -> PortReport:
    """Who holds a port on a machine, or what job a process of it belongs to."""
    pid, started = process or (None, None)
    told = machine.ask("port", port=port, pid=pid, started=started, grace_s=grace_s)
    trial = told["trial"] or {"free": not told["jobs"]}
    return PortReport(
        host=machine.name or told["host"],
        here=not machine.name,
        port=port,
        pid=pid,
        gone=started is not None and not told["jobs"],
        free=trial["free"],
        cause=trial.get("cause"),
        error=trial.get("error"),
        hint=trial.get("hint"),
        time_wait_s=trial.get("time_wait_s"),
        jobs=tuple(map(_job, told["jobs"])),
        sockets=tuple(Socket(**sock) for sock in trial.get("sockets", ())),
        elsewhere=tuple(Elsewhere(**one) for one in told["elsewhere"]),
        root=told["uid"] == 0,
        reserved=(told["range"] or {}).get("reserved"),
    )


def end(machine: Machine, jobs: Iterable[HolderJob], grace_s: float, *, force: bool, tell: Tell) -> Ended:
    """Ends whole jobs: SIGTERM, a grace period, SIGKILL; each process is looked at again right before each signal."""
    named = [(member.pid, member.started) for job in jobs for member in job.members]
    answer = machine.ask("signal", processes=named, signal="TERM", force=force)
    denied = [why for _, why in answer["denied"]]
    if denied and not answer["sent"]:  # then there is nothing to wait for
        return Ended((), tuple(sorted(pid for pid, _ in _identities(answer))), tuple(dict.fromkeys(denied)))
    known = dict.fromkeys([*named, *_identities(answer)])

    def alive() -> list[tuple[int, int]]:
        # what a launcher started while it was ending belongs to the job too
        living = _identities(machine.ask("signal", processes=list(known), signal=None, force=force))
        known.update(dict.fromkeys(living))
        if len(known) > MOST_PROCESSES:
            raise NotReachedError(f"{machine.name}: it tells of more than {MOST_PROCESSES} processes of one job")
        return living

    left = _wait(alive, grace_s, lambda pids, s: tell(f"SIGTERM sent; SIGKILL to pid {pids} in {s:.0f} s"))
    if left:
        answer = machine.ask("signal", processes=list(known), signal="KILL", force=force)
        denied += [why for _, why in answer["denied"]]
        left = _wait(alive, KILL_S, lambda pids, s: tell(f"SIGKILL sent; waiting for pid {pids}, {s:.0f} s"))
    staying = {pid for pid, _ in left}
    gone = tuple(pid for pid, _ in known if pid not in staying)
    return Ended(gone, tuple(sorted(staying)), tuple(dict.fromkeys(denied)))


def wait_until_free(machine: Machine, report: PortReport, tell: Tell, *, settle_s: float = SETTLE_S) -> PortReport:
    """Tries the port again as long as waiting can help: the kernel ends a TIME_WAIT by itself, no process."""
    settled = time.monotonic() + settle_s
    began = time.monotonic()
    while not report.free:
        waiting = report.cause == "time-wait"
        if waiting and time.monotonic() - began > min(2 * (report.time_wait_s or 60) + 60, MOST_WAIT_S):
            return report
        if not waiting and time.monotonic() > settled:
            return report
        if waiting and report.time_wait_s is not None:
            tell(f"port {report.port}: TIME_WAIT, free in {report.time_wait_s:.0f} s")
        sleep(min(1.0, (report.time_wait_s or 0) + 0.05) if waiting else POLL_S)
        report = look(machine, report.port, None, 0)
    return report


def next_port(machines: Sequence[Machine], after: int, address: str | None = None) -> int | None:
    """The first port behind ``after``, then from 1024 on, that is fit and free on all machines; None where none is.

    Args:
        machines: the one that will listen, and then the others of its job.
        after: the port to move away from.
        address: where the others will look for the first; they try it there. None where nobody else will.

    Raises:
        DoctorError: they reach none of those that were tried.
        NotReachedError: a machine did not answer.
    """
    target, *others = machines
    candidates = (port for port in chain(range(after + 1, LAST_PORT + 1), range(FIRST, after)) if port >= FIRST)
    wanted = (port for port in candidates if port not in WELL_KNOWN)
    tried: list[dict[str, set[int]]] = []
    for batch in _batches(wanted):
        free = set(batch)
        for answer in _everywhere(partial(_free, batch), machines):
            free &= answer
        if free and others and address is not None:
            from nccl_doctor.collect.port_reach import reached

            tried.append(reached(target, others, address, [port for port in batch if port in free]))
            free = set.intersection(*tried[-1].values())
        if free:
            return next(port for port in batch if port in free)
        if len(tried) == TRIALS:
            raise DoctorError(_out_of_reach(target, address, tried))
    return None


def _out_of_reach(target: Machine, address: str | None, tried: Sequence[dict[str, set[int]]]) -> str:
    lost = [name for name in tried[0] if not any(answer[name] for answer in tried)]
    return (
        f"{fold(lost or list(tried[0]))} can't reach {target.name} ({address}) on any port that is free there; "
        "`nccl-doctor check` with the same hosts finds what stops them"
    )


def suggestion(
    machines: Sequence[Machine], after: int, address: str | None = None, master: str | None = None
) -> Suggestion | None:
    """The next port, and the line that sets it for what is started next from the same shell; see :func:`next_port`.

    torchrun and torch.distributed.launch read PET_MASTER_PORT (torch/distributed/argparse_util.py), ``env://`` reads
    MASTER_PORT (torch/distributed/rendezvous.py).
    """
    port = next_port(machines, after, address)
    if port is None:
        return None
    command = script("export MASTER_PORT={port} PET_MASTER_PORT={port}", port=port)
    return Suggestion(port, command.text, tuple(machine.name for machine in machines), master)


def _everywhere(ask: Callable[[Machine], set[int]], machines: Sequence[Machine]) -> Iterator[set[int]]:
    """The answers of all machines, asked at once; the first that fails is raised."""
    if len(machines) == 1:
        # without the import of threads and queues, which takes a tenth of the command's time
        yield ask(machines[0])
        return
    from nccl_doctor.collect.fanout import fan_out

    for answer in fan_out(ask, machines):
        if isinstance(answer, Exception):
            raise answer
        yield answer


def _free(ports: list[int], machine: Machine) -> set[int]:
    return set(machine.ask("free", ports=ports)["free"])


def _batches(ports: Iterator[int]) -> Iterator[list[int]]:
    size = FEW
    while batch := list(islice(ports, size)):
        yield batch
        size = MANY


def _wait(
    alive: Callable[[], list[tuple[int, int]]], seconds: float, tell: Callable[[str, float], None]
) -> list[tuple[int, int]]:
    """Those that still live after so many seconds; returns at once when nobody does."""
    deadline = time.monotonic() + seconds
    while (living := alive()) and (left := deadline - time.monotonic()) > 0:
        tell(" ".join(str(pid) for pid, _ in living[:8]) + (" …" if len(living) > 8 else ""), left)
        sleep(POLL_S)
    return living


def _identities(answer: dict[str, Any]) -> list[tuple[int, int]]:
    return [(pid, started) for pid, started in answer["alive"]]


def _job(told: dict[str, Any]) -> HolderJob:
    members = tuple(
        Member(**{**one, "gpus": tuple(GpuUse(use["gpu"], use["uuid"], use["memory_mib"]) for use in one["gpus"])})
        for one in told["processes"]
    )
    return HolderJob(
        root=told["root"],
        orphan=told["orphan"],
        unit=told["unit"],
        holders=tuple(Holder(**{**one, "tree": tuple(one["tree"])}) for one in told["holders"]),
        members=members,
        refusal=told["refusal"],
        final=told["final"],
    )
