"""Samples a running job on all its hosts simultaneously, as often as requested, and parses the results.

This machine's py-spy program is sent to the hosts. If a host can't run this machine's py-spy program, nccl-doctor does
not download another one. The py-spy wheel for Linux contains a statically linked program, which runs on every Linux
system of the same architecture.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import TypeAdapter

from nccl_doctor import __version__
from nccl_doctor.collect.hang.jobs import ChosenJob, choose, with_counted
from nccl_doctor.collect.hang.probe_answers import LOOK, RANKS, host_look, job_ranks
from nccl_doctor.collect.hang.reader import DocumentReader, UnreadableError
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import Contract, ControllerPausedError, MalformedError
from nccl_doctor.crew.crew import Crew
from nccl_doctor.crew.parallel import apart, failure_of
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.base import Fact, Phased, Unknown, unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.hang import HangHost, HangSnapshot, HostLook, JobRanks, Ras, Starter
from nccl_doctor.text.machine import thread_safe_cache
from nccl_doctor.transport.base import Transport

if TYPE_CHECKING:
    from nccl_doctor.collect.options import Progress


ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le"}
"""Maps values of ``e_machine`` in the ELF header (elf(5)) to the architecture names that ``uname -m`` prints."""
REMEDY = "to have stacks there, install py-spy on that host, in root's PATH"


@thread_safe_cache
def pack(machine: str) -> dict[str, Any]:
    """Return py-spy as ``{"machine", "data": base64 of zlib}``, or ``{"missing": reason}`` if it can't be sent."""
    program = own_program()
    if program is None or not program.is_file():
        return {"missing": "nccl-doctor's own py-spy has no program to send along"}
    data = program.read_bytes()
    target = built_for(data)
    if target != machine:
        return {"missing": f"nccl-doctor's own is for {target}; {REMEDY}"}
    return {"machine": machine, "data": base64.b64encode(zlib.compress(data, 1)).decode()}


def own_program() -> Path | None:
    """Return the path of the py-spy program that was installed with nccl-doctor, or None if it is missing."""
    try:
        files = distribution("py-spy").files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == "py-spy"), None)


def built_for(program: bytes) -> str:
    """Return the architecture of a Linux program, as ``uname -m`` prints it, or a phrase for any other program."""
    if not program.startswith(b"\x7fELF"):
        return "another system than Linux"
    number = int.from_bytes(program[18:20], "little")
    return ELF_MACHINES.get(number, f"ELF machine {number}")


ANSWER_S = 10.0  # to find the ranks of a host; for 8 of them it takes 10 ms
LOOK_S = 12.0
RAS_ANSWER_S = 12.0
SHIP_S = 30.0
RAS_HOSTS = 2

Stacks = Literal["read", "pause", "native", "none"]
Result = TypeVar("Result")

_PY_SPY: Contract[None] = Contract("py_spy", TypeAdapter(None))
_DUMP = Contract("dump", TypeAdapter(tuple[int, ...]))
_STARTERS: Contract[Fact[tuple[Starter, ...]]] = Contract("starters", TypeAdapter(Fact[tuple[Starter, ...]]))
_RAS: Contract[Phased[Ras]] = Contract("ras", TypeAdapter(Phased[Ras]))


@dataclass(frozen=True)
class HangOptions:
    """Options of ``hang``.

    With ``force``, NCCL's RAS service is queried even if the query might crash jobs.
    """

    interval_s: float = 5.0
    looks: int = 2
    stacks: Stacks = "read"
    pid: int | None = None
    force: bool = False
    dump: bool = False
    connect_s: float | None = None
    total_s: float = 120.0


def take(cluster: Cluster, transport: Transport, options: HangOptions, progress: Progress) -> HangSnapshot:
    """Connect to the hosts, sample the job, and disconnect.

    Raise UsageError if it is unclear which of several jobs to sample. Raise NotReachedError if this machine was
    suspended before the sample was complete.
    """
    crew = Crew(cluster.nodes, transport, options.connect_s)
    try:
        return observe(cluster, crew, options, progress)
    finally:
        crew.close()


def observe(cluster: Cluster, crew: Crew, options: HangOptions, progress: Progress) -> HangSnapshot:
    """Connect to hosts that have neither a connection nor a known failure, and sample the job.

    The function raises the same errors as :func:`take`.
    """
    observation = _Observation(cluster, crew, options, progress)
    try:
        return observation.run()
    except ControllerPausedError as error:
        raise NotReachedError(f"{error}; run it again") from error
    finally:
        observation.close()


class _Observation:
    def __init__(self, cluster: Cluster, crew: Crew, options: HangOptions, progress: Progress) -> None:
        self._cluster, self._crew, self._options, self._progress = cluster, crew, options, progress
        self._began = time.monotonic()
        self._reader = DocumentReader(self._began + options.total_s)
        self._began_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._jobs: dict[str, JobRanks] = {}
        self._looks: dict[str, list[HostLook]] = {}
        self._starters: dict[str, Fact[tuple[Starter, ...]]] = {}
        self._ras: dict[str, tuple[Phased[Ras], ...]] = {}
        self._choice = ChosenJob({}, {}, {}, (), {})
        self._timings: dict[str, float] = {}

    def run(self) -> HangSnapshot:
        nodes, known = self._cluster.nodes, {*self._crew.opened, *self._crew.failures}
        began = self._phase("connecting", [node.name for node in nodes if node.name not in known])
        self._crew.connect(self._began + self._options.total_s, self._progress.done)
        self._timings["connect"] = time.monotonic() - began
        self.find()
        self.look()
        self.look_at_starters()
        self.ask_ras()
        return self.snapshot()

    def close(self) -> None:
        self._reader.close()

    def find(self) -> None:
        began = self._phase("finding ranks", [session.node.name for session in self._crew.sessions])

        def find(session: ProbeSession) -> JobRanks:
            result = _ask(session, RANKS, ANSWER_S)
            try:
                host_ranks = job_ranks(result)
            except MalformedError as error:
                raise session.gone(error) from error
            unnumbered = not isinstance(host_ranks.unnumbered, Unknown) and host_ranks.unnumbered
            if (host_ranks.ranks or unnumbered) and not host_ranks.py_spy and self._options.stacks != "none":
                bundle = pack(session.hello.machine)
                _ask(session, _PY_SPY, SHIP_S, bundle=bundle)
            return host_ranks

        result = with_counted(self._everywhere(find))
        words = () if self._cluster.source == "this machine" else ClusterSource(self._cluster).arguments
        choice = self._choice = choose(result, port=self._cluster.master_port, pid=self._options.pid, words=words)
        for name, why in choice.contradictory_hosts.items():
            self._crew.failures.setdefault(name, _failure(ValueError(why)))
        for name, entry in result.items():
            if name not in choice.contradictory_hosts:  # processes of other programs are not reported
                kept = entry.unnumbered if isinstance(entry.unnumbered, Unknown) else ()
                self._jobs[name] = entry.model_copy(update={"ranks": choice.ranks[name], "unnumbered": kept})
        self._timings["find"] = time.monotonic() - began

    def look(self) -> None:
        if not self._with_ranks():
            return
        began = self._phase("looking", [name for name, job in self._jobs.items() if job.ranks])
        stacks = None if self._options.stacks == "none" else self._options.stacks

        def look_at(session: ProbeSession) -> HostLook:
            pids = self._pids(session)
            answer = _ask(session, LOOK, LOOK_S + 2, pids=pids, stacks=stacks, deadline_s=LOOK_S)
            return host_look(answer, self._jobs[session.node.name], partial(self._reader.dump, session.node.name))

        if self._options.dump:
            self._everywhere(lambda session: _ask(session, _DUMP, ANSWER_S, pids=self._pids(session)))
        for number in range(self._options.looks):
            if number:
                time.sleep(max(0.0, self._options.interval_s))
            for name, look in self._everywhere(look_at, self._with_ranks()).items():
                self._looks.setdefault(name, []).append(look)
        self._timings["look"] = time.monotonic() - began

    def look_at_starters(self) -> None:
        """Sample the starting ranks again to detect progress, if no rank is running yet."""
        starting = [name for name, job in self._jobs.items() if not isinstance(job.starters, Unknown) and job.starters]
        if self._with_ranks() or not starting:
            return
        began = self._phase("looking", starting)
        time.sleep(max(0.0, self._options.interval_s))
        self._starters = self._everywhere(lambda session: _ask(session, _STARTERS, ANSWER_S))
        self._timings["look"] = time.monotonic() - began

    def ask_ras(self) -> None:
        """Query NCCL's RAS service on up to two hosts, until one host answers; the answer covers the whole job."""
        serving = {name for name, looks in self._looks.items() if any(look.serves_ras for look in looks)}
        asked = [session for session in self._with_ranks() if session.node.name in serving][:RAS_HOSTS]
        if not asked:
            return

        @apart
        def ask(session: ProbeSession) -> Phased[Ras]:
            answer = _ask(session, _RAS, RAS_ANSWER_S, pids=self._pids(session), force=self._options.force)
            try:
                for report in answer.reports if isinstance(answer, Ras) else ():
                    self._reader.look_through(session.node.name, report.text)
            except UnreadableError as error:
                return unknown(f"NCCL's RAS: {error}")
            return answer

        began = self._phase("querying NCCL's RAS", [session.node.name for session in asked])
        for session in asked:
            try:
                answer = ask(session)
            except answers.ProbeError as error:
                answer = unknown(f"NCCL's RAS: {' '.join(str(error).split())}")
            self._ras[session.node.name] = (answer,)
            if isinstance(answer, Ras):
                break
        self._timings["ras"] = time.monotonic() - began

    def snapshot(self) -> HangSnapshot:
        self._timings["total"] = time.monotonic() - self._began
        return HangSnapshot(
            version=__version__,
            taken_at=self._began_at,
            interval_s=self._options.interval_s,
            stacks=self._options.stacks,
            cluster=self._cluster,
            hosts=tuple(map(self._host, self._cluster.nodes)),
            other_jobs=self._choice.others,
            timings={name: round(seconds, 3) for name, seconds in self._timings.items()},
        )

    def _host(self, node: Node) -> HangHost:
        def whole() -> HangHost:
            return HangHost(
                node=node,
                job=self._jobs.get(node.name),
                misnumbered_ranks=self._choice.misnumbered_ranks.get(node.name, ()),
                rivals=self._choice.rivals.get(node.name, ()),
                looks=tuple(self._looks.get(node.name, ())),
                starters=self._starters.get(node.name, ()),
                ras=self._ras.get(node.name, ()),
                failure=self._crew.failures.get(node.name),
            )

        try:
            return answers.attempt(whole)
        except answers.OwnFaultError as error:
            return HangHost(node=node, failure=failure_of(error, "hang", "the probe's answer was not understood"))

    def _with_ranks(self) -> list[ProbeSession]:
        return [
            session
            for session in self._crew.sessions
            if session.node.name in self._jobs and self._jobs[session.node.name].ranks
        ]

    def _pids(self, session: ProbeSession) -> list[int]:
        return [rank.pid for rank in self._jobs[session.node.name].ranks] if session.node.name in self._jobs else []

    def _everywhere(
        self, work: Callable[[ProbeSession], Result], sessions: list[ProbeSession] | None = None
    ) -> dict[str, Result]:
        asked = self._crew.sessions if sessions is None else sessions
        return self._crew.everywhere(work, asked, _failure, self._progress.done)

    def _phase(self, name: str, hosts: list[str]) -> float:
        self._progress.phase(name, hosts)
        return time.monotonic()


def _failure(error: Exception) -> AnyAccessFailure:
    return failure_of(error, "hang", "the probe reported nothing about the job")


def _ask(session: ProbeSession, contract: Contract[Result], seconds: float, **arguments: object) -> Result:
    return session.ask(contract, time.monotonic() + seconds, **arguments)
