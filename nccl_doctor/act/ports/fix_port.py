"""Implements ``fix-port``, which examines a port, ends a job, waits until a port is free, or finds a free port.

The port to examine comes from the argument, a log, the hosts file, MASTER_PORT, or torch's default. Only a port to
which every host has connected is suggested, because a firewall might drop packets to a free port.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from time import sleep
from typing import Any, NamedTuple

from nccl_doctor.act.ports.fleet import (
    FREE,
    NAMED,
    PORT,
    SIGNAL,
    Fleet,
    PortTrialAnswer,
    QueriedMachine,
    SessionMachine,
)
from nccl_doctor.crew.parallel import Window, ask_all, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.errors import DoctorError, NotReachedError, UsageError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.sources import SourceLocation, read_bytes
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT
from nccl_doctor.model.ports import LAST_PORT, HolderJob, PortReport, ProcessIdentity, Suggestion
from nccl_doctor.nccl.messages import PortError, find_port_error
from nccl_doctor.probe.options import port_words
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.shell import line, script

Tell = Callable[[str], None]  # shows what is being waited for; the next call replaces the text
POLL_S = 0.1
KILL_S = 5.0  # time for a process to exit after SIGKILL: the kernel frees its memory, a GPU's driver its own
SETTLE_S = 1.0  # time for sockets to close after their last process
MOST_WAIT_S = 300.0  # time for the kernel to release a port, whatever a host says: TIME_WAIT takes a minute
MOST_PROCESSES = 1 << 15  # processes of a job, with all that it started while it was ending
FIRST = 1024
FEW, MANY = 16, 512  # ports tested at once: the first ones are mostly free, and each costs a trial
HALVES, TRIALS = 192, 2
"""Number of ports to test per attempt after a firewall has blocked the first ports, and number of attempts."""
DIAL_S = 3.0
AT_ONCE = 64
"""Number of ports to try simultaneously, small enough for a host to connect to all of them within one time-out."""
WELL_KNOWN = frozenset(
    {
        *(2049, 2222, 3000, 3306, 4444, 5000, 5432, 5555, 6006, 6379, 6443, 6817, 6818, 6819, 7860, 8000, 8080, 8265),
        *(8443, 8787, 8786, 8888, 8889, 9000, 9090, 9100, 9400, 10001, 10250, 11211, 11434, 19999, 27017, 28028, 29400),
    }
)
"""Ports of services that are common on training clusters. These ports are avoided even if no such service is running.

The services include NFS, Slurm, Ray, Dask, the kubelet, notebooks, dashboards, NCCL's RAS (28028), and torchrun's c10d
rendezvous (29400).
"""


class EndedJob(NamedTuple):
    """The result of ending a job: PIDs of ended and running processes, and reasons why processes were not signalled."""

    gone: tuple[int, ...]
    left: tuple[int, ...]
    denied: tuple[str, ...]


def look(machine: QueriedMachine, port: int | None, process: ProcessIdentity | None, grace_s: float) -> PortReport:
    pid, started = process or (None, None)
    answer = machine.ask(PORT, port=port, pid=pid, started=started, grace_s=grace_s)
    trial = answer.trial or PortTrialAnswer(free=not answer.jobs)
    return PortReport(
        host=machine.name or answer.host,
        here=not machine.name,
        port=port,
        pid=pid,
        gone=started is not None and not answer.jobs,
        **dict(trial),
        jobs=answer.jobs,
        elsewhere=answer.elsewhere,
        root=answer.uid == 0,
        reserved=answer.range.reserved_text if answer.range else None,
        drawn=port is not None and trial.free and answer.range is not None and answer.range.gives(port),
    )


def end(machine: QueriedMachine, jobs: Iterable[HolderJob], grace_s: float, *, force: bool, tell: Tell) -> EndedJob:
    """End whole jobs with SIGTERM, then SIGKILL after a grace period; re-examine each process before each signal."""
    named = [(member.pid, member.started) for job in jobs for member in job.members]
    answer = machine.ask(SIGNAL, processes=named, signal="TERM", force=force)
    denied = [why for _, why in answer.denied]
    if denied and not answer.sent:  # then there is nothing to wait for
        return EndedJob((), tuple(sorted(pid for pid, _ in answer.alive)), tuple(dict.fromkeys(denied)))
    known = dict.fromkeys([*named, *answer.alive])

    def alive() -> list[tuple[int, int]]:
        # processes that a launcher started while it was ending belong to the job, too
        living = list(machine.ask(SIGNAL, processes=list(known), signal=None, force=force).alive)
        known.update(dict.fromkeys(living))
        if len(known) > MOST_PROCESSES:
            raise NotReachedError(f"{machine.name}: it reports more than {MOST_PROCESSES} processes of one job")
        return living

    left = _wait(alive, grace_s, lambda pids, s: tell(f"SIGTERM sent; SIGKILL to pid {pids} in {s:.0f} s"))
    if left:
        answer = machine.ask(SIGNAL, processes=list(known), signal="KILL", force=force)
        denied += [why for _, why in answer.denied]
        left = _wait(alive, KILL_S, lambda pids, s: tell(f"SIGKILL sent; waiting for pid {pids}, {s:.0f} s"))
    staying = {pid for pid, _ in left}
    gone = tuple(pid for pid, _ in known if pid not in staying)
    return EndedJob(gone, tuple(sorted(staying)), tuple(dict.fromkeys(denied)))


def wait_until_free(
    machine: QueriedMachine, report: PortReport, tell: Tell, *, settle_s: float = SETTLE_S
) -> PortReport:
    """Test a port repeatedly while only sockets in TIME_WAIT or another nccl-doctor run occupy the port.

    For a moment after a process exits, its socket might have no owner and still not be in TIME_WAIT. The tests
    therefore continue for ``settle_s`` seconds after the first test that finds neither TIME_WAIT nor another run.
    """
    began = closing_since = time.monotonic()
    waited = False
    while not report.free:
        waiting, now = report.ends_by_itself, time.monotonic()
        closing_since = now if waited else closing_since
        waited = waiting
        patience = min(2 * (report.time_wait_s or 60) + 60, MOST_WAIT_S) if waiting else settle_s
        if now - (began if waiting else closing_since) > patience:
            return report
        if waiting and report.time_wait_s is not None:
            tell(f"port {report.port}: TIME_WAIT, free in {report.time_wait_s:.0f} s")
        elif waiting and report.jobs:
            tell(f"port {report.port}: waiting for another run of nccl-doctor")
        sleep(min(1.0, (report.time_wait_s or 0) + 0.05) if waiting else POLL_S)
        report = look(machine, report.port, None, 0)
    return report


def next_port(machines: Sequence[QueriedMachine], after: int, address: str | None = None) -> int | None:
    """Return a port that is free on every host and reachable at ``address``, or None if there is no such port.

    The search starts above port ``after``. If no port up to 65535 is suitable, the search continues at port 1024.
    """
    target, *others = machines
    candidates = chain(range(after + 1, LAST_PORT + 1), range(FIRST, after))
    wanted = (port for port in candidates if port >= FIRST and port not in WELL_KNOWN)
    size = FEW
    while batch := list(islice(wanted, size)):
        size = MANY
        free = _free_on_all(machines, batch)
        if free and others and address is not None:
            answers = reached(target, others, address, [port for port in batch if port in free][:AT_ONCE])
            free = set.intersection(*answers.values())
            if not free:
                return _let_in(machines, address, after, answers)
        if free:
            return next(port for port in batch if port in free)
    return None


def _let_in(machines: Sequence[QueriedMachine], address: str, after: int, answers: dict[str, set[int]]) -> int:
    """Return a port on which the first machine accepts connections from all other machines, or raise DoctorError."""
    target, *others = machines
    halved = (int(f"{number:016b}"[::-1], 2) for number in range(1 << 16))
    named = list(target.ask(NAMED).ports)
    wanted = (port for port in chain(named, halved) if port >= FIRST and port not in {*WELL_KNOWN, after})
    tried = [answers]
    for _ in range(TRIALS):
        batch = list(islice(wanted, HALVES))
        free = _free_on_all(machines, batch, ephemeral=True)
        tried.append(reached(target, others, address, [port for port in batch if port in free]))
        good = [port for port in batch if port in set.intersection(*tried[-1].values())]
        if good:
            lasting = _free_on_all(machines, good)
            return next((port for port in good if port in lasting), good[0])
    lost = fold([name for name in answers if not any(answer[name] for answer in tried)] or list(answers))
    raise DoctorError(
        f"{lost} can't reach {target.name} ({address}) on any of the ports that were tried there, from {FIRST} to "
        f"{LAST_PORT}; `nccl-doctor check` with the same hosts finds what stops them"
    )


def _free_on_all(machines: Sequence[QueriedMachine], ports: list[int], *, ephemeral: bool = False) -> set[int]:
    free: list[set[int]] = []
    for answer in fan_out(lambda machine: machine.ask(FREE, ports=ports, ephemeral=ephemeral), machines):
        if isinstance(answer, Exception):
            raise answer
        free.append(set(answer.free))
    return set.intersection(*free)


def suggestion(fleet: Fleet, after: int, holders: Iterable[HolderJob] = ()) -> Suggestion | None:
    """Suggest a port found by :func:`next_port`, with a shell command that sets the port for the next start.

    ``holders`` are the jobs that are using the old port. torchrun and torch.distributed.launch read PET_MASTER_PORT
    (torch/distributed/argparse_util.py); ``env://`` reads MASTER_PORT (torch/distributed/rendezvous.py).
    """
    machines = fleet.all()
    port = next_port(machines, after, fleet.address)
    if port is None:
        return None
    command = script("export MASTER_PORT={port} PET_MASTER_PORT={port}", port=port)
    hosts = tuple(machine.name for machine in machines)
    answer = machines[0].ask(FREE, ports=[port], ephemeral=False)
    reserve = None
    if port not in answer.free and answer.drawn is not None:
        reserve = line("sysctl -w net.ipv4.ip_local_reserved_ports={kept}", kept=answer.drawn.reserving(port))
    by = [member.launcher for job in holders for member in job.members if member.launcher is not None]
    return Suggestion(
        port=port,
        command=command.text,
        hosts=hosts,
        master=fleet.master,
        reserve=reserve and reserve.text,
        starts=port_words(by, port),
    )


def _wait(
    alive: Callable[[], list[tuple[int, int]]], seconds: float, tell: Callable[[str, float], None]
) -> list[tuple[int, int]]:
    """Wait at most ``seconds`` for all processes to exit, and return the processes that are still running."""
    deadline = time.monotonic() + seconds
    while (living := alive()) and (left := deadline - time.monotonic()) > 0:
        tell(" ".join(str(pid) for pid, _ in living[:8]) + (" …" if len(living) > 8 else ""), left)
        sleep(POLL_S)
    return living


class Steps(NamedTuple):
    """The requested steps of ``fix-port``, and functions that ask or inform the user.

    SIGKILL follows SIGTERM after ``grace_s`` seconds. No signal is sent unless ``confirm`` returns True.
    """

    kill: bool
    force: bool
    wait: bool
    grace_s: float
    confirm: Callable[[PortReport], bool]
    tell: Tell
    say: Tell


def about_port(fleet: Fleet, port: int, process: ProcessIdentity | None, steps: Steps) -> PortReport:
    """Examine a port, or a single process that uses the port, and take the requested steps."""
    report = look(fleet.target, port, process, steps.grace_s)
    if report.gone and not report.free:
        report = look(fleet.target, port, None, steps.grace_s)
        report = report.model_copy(update={"gone": True, "pid": process and process.pid})
    if steps.kill and not report.free:
        report = _kill(report, fleet.target, steps)
    if steps.wait or report.ended:
        waited = wait_until_free(fleet.target, report, steps.tell)
        fate = {"ended": report.ended, "left": report.left, "refused": report.refused}
        report = waited.model_copy(update=fate)
    if not report.free:
        try:
            report = report.model_copy(update={"suggestion": suggestion(fleet, port, report.jobs)})
        except DoctorError as error:
            steps.say(f"no port to move to: {error}")
    return report


def about_process(fleet: Fleet, process: ProcessIdentity, steps: Steps) -> PortReport:
    """Examine the job of a process, regardless of the port, and end the job if requested."""
    report = look(fleet.target, None, process, steps.grace_s)
    return _kill(report, fleet.target, steps) if steps.kill and report.jobs else report


def end_leftover(machine: QueriedMachine, port: int | None, process: ProcessIdentity, steps: Steps) -> PortReport:
    """End the job of a process, and wait until the port is free; do nothing if the process is gone."""
    report = look(machine, None, process, steps.grace_s)
    if report.gone or not report.jobs:
        return report.model_copy(update={"gone": True})
    ended = _kill(report, machine, steps)
    if port is not None and ended.ended:
        wait_until_free(machine, look(machine, port, None, steps.grace_s), steps.tell)
    return ended


def moved(fleet: Fleet, port: int) -> PortReport:
    """Suggest a port that is free on every host as a replacement for ``port``; raise DoctorError if no port is free."""
    candidate = suggestion(fleet, port)
    if candidate is None:
        raise DoctorError("no port from 1024 to 65535 is free on every host and fit for a job")
    name = fleet.target.name
    host = name or socket.gethostname()
    return PortReport(host=host, here=not name, port=candidate.port, free=True, suggestion=candidate, instead_of=port)


def _kill(report: PortReport, machine: QueriedMachine, steps: Steps) -> PortReport:
    """End all jobs that are using the port, but only if every job may be ended."""
    refused = _why_not(report, force=steps.force)
    if refused is None and not steps.confirm(report):
        refused = "it was not confirmed"
    if refused is not None:
        return report.model_copy(update={"refused": refused})
    ended = end(machine, report.jobs, steps.grace_s, force=steps.force, tell=steps.tell)
    fate: dict[str, Any] = {"ended": ended.gone, "left": ended.left, "refused": "; ".join(ended.denied) or None}
    if report.port is None:
        fate |= {"free": not ended.left, "jobs": ()}
    return report.model_copy(update=fate)


def _why_not(report: PortReport, *, force: bool) -> str | None:
    if report.gone:
        return f"that process has exited, and pid {report.pid} now belongs to another process or to none"
    if not report.jobs:
        return report.hint or "no process holds the port any more; it only needs time (--wait)"
    # refusals that --force can't override come first
    jobs = sorted(report.jobs, key=lambda job: not job.final)
    return next((job.refusal for job in jobs if job.refusal and (job.final or not force)), None)


def reached(
    target: QueriedMachine, others: Sequence[QueriedMachine], address: str, ports: Sequence[int]
) -> dict[str, set[int]]:
    """Map each host in ``others`` to the ports of the target that the host can reach.

    Raise NotReachedError if a host doesn't answer.
    """
    from nccl_doctor.collect.mesh.dials import dial_targets, listening
    from nccl_doctor.collect.mesh.plan import DialTarget, listener

    nonce, wanted = secrets.token_hex(16), [listener(port) for port in ports]
    # a holder of other ports was named, but not this one's
    sessions = [machine.session for machine in (target, *others) if isinstance(machine, SessionMachine)]
    with listening(sessions, nonce, lambda item: wanted if item is sessions[0] else [], Window()) as opened:
        result = opened[target.name]
        good = () if isinstance(result, Exception) else tuple(port for port in result.ports if port is not None)

        def dial(session: ProbeSession) -> set[int]:
            dialled = dial_targets(session, [DialTarget(target.name, address, good)], nonce, DIAL_S)
            return {*good} - {row.port for row in dialled.failed}

        answers = dict(zip((item.name for item in others), ask_all(dial, sessions[1:], window=Window()), strict=True))
    for name, answer in {**opened, **answers}.items():
        if isinstance(answer, Exception):
            raise NotReachedError(f"{name}: {answer}")
    return {name: answer for name, answer in answers.items() if isinstance(answer, set)}


STDIN = "-"
MOST_BYTES = 64 << 20  # bytes of a log; the error is near the start of a rank's output


def wanted_port(argument: str | None, log: str | None, hosts_port: int | None) -> tuple[int, str | None]:
    """Return the port and its source (None for the argument); raise UsageError if no port can be determined."""
    if argument is not None and argument != STDIN:
        return _port(argument, "PORT"), None
    source = log if log is not None else STDIN if argument == STDIN or _is_piped() else None
    named = "stdin" if source == STDIN else str(source)
    port_error = None if source is None else _find_error(source, named, must=log is not None or argument == STDIN)
    if port_error is not None and port_error.port is not None:
        return port_error.port, f"{named}: {port_error.meaning}"
    behind = f"{named} has no port in it; " if port_error else ""
    if hosts_port is not None:
        return hosts_port, f"{behind}the hosts file"
    if os.environ.get("MASTER_PORT"):
        return _port(os.environ["MASTER_PORT"], "MASTER_PORT"), f"{behind}MASTER_PORT"
    if port_error is not None:
        default = f"torchrun uses {DEFAULT_MASTER_PORT} by default"
        raise UsageError(f"{behind}give it: nccl-doctor fix-port PORT ({default})")
    return DEFAULT_MASTER_PORT, "torch's default, since no port was named"


def _port(text: str, source: str) -> int:
    return values.port(text, SourceLocation(source, is_file=False))


def _find_error(source: str, named: str, *, must: bool) -> PortError | None:
    """Return the port error in a log, or None; with ``must``, raise UsageError if the log has no port error."""
    try:
        data = sys.stdin.buffer.read(MOST_BYTES) if source == STDIN else read_bytes(source, "a log", MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{named}: can't be read: {error.strerror}") from error
    port_error = find_port_error(data[:MOST_BYTES].decode(errors="replace"))
    if port_error is None and must:
        raise UsageError(f'{named}: no "Address already in use" in it; give the port itself')
    if port_error is not None and port_error.kind == "ephemeral":
        raise UsageError(f'{named}: "{port_error.line}": {port_error.meaning}')
    return port_error


def _is_piped() -> bool:
    """Return whether stdin is a pipe that contains data; an open but empty pipe, as under SSH, does not count."""
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode) and bool(select.select([0], [], [], 0)[0])
    except OSError:  # closed
        return False
