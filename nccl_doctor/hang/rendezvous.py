"""Determines why launchers wait for each other before any rank exists, or why the rendezvous of ranks fails.

torchrun assigns node ranks when ``--nnodes`` nodes have connected to one store. If a node was not started, has a
different port or rendezvous ID, or has the same ``--node_rank`` as another node, all other nodes wait without output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nccl_doctor.hang.observed_rank import MOST_LINES, ObservedRank, worked, world_size
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot.hang import HangSnapshot, JobRank, Starter
from nccl_doctor.text.hostlist import capital, fold, grouped, plural, ranks_of

STATIC, C10D = "static", "c10d"
PORTS = {STATIC: "29500", C10D: "29400"}
"""torchrun's default ports by backend (torch/distributed/run.py, c10d_rendezvous_backend.py)."""
MOST_NODES = 1 << 16
_DIGITS = 5  # of that
LAST_CALL_S = 60.0  # twice what torchrun waits for more nodes once it has the minimum (dynamic_rendezvous.py)


@dataclass(frozen=True)
class Waiting:
    """A launcher that has not started any ranks yet."""

    host: str
    starter: Starter

    def option(self, name: str, default: str = "") -> str:
        """Return the value of a launcher's option; ``name`` is torchrun's name for the option."""
        return self.starter.asked.get(name, default)

    @property
    def program(self) -> str:
        name = self.starter.program
        return "torchrun" if name.startswith("torch.distributed.") else name

    @property
    def backend(self) -> str:
        return self.option("rdzv_backend", STATIC)

    @property
    def place(self) -> tuple[str, str]:
        """Address and port of the rendezvous."""
        address, colon, port = self.option("rdzv_endpoint").rpartition(":")
        if colon and port.isdigit():
            return address, port
        address = self.option("rdzv_endpoint") or self.option("master_addr")
        return address, self.option("master_port") or PORTS.get(self.backend, "")

    @property
    def meeting(self) -> tuple[str, ...]:
        """Settings that all nodes of a job share, except the address, because a machine can have several addresses."""
        return self.option("nnodes", "1"), self.backend, self.option("rdzv_id", "none"), self.place[1]

    @property
    def nodes(self) -> int:
        """Number of nodes that the launcher waits for (MIN, if ``--nnodes`` is "MIN:MAX"), or 0 if unknown."""
        least = self.option("nnodes", "1").partition(":")[0]
        is_count = len(least) <= _DIGITS and least.isascii() and least.isdecimal()
        return int(least) if is_count and int(least) <= MOST_NODES else 0

    @property
    def meets(self) -> bool:
        """True if the launcher waits for other nodes; a single node with the static backend does not wait."""
        return self.nodes != 1 or self.backend != STATIC

    @property
    def connected(self) -> bool:
        """True if the launcher is connected to the store."""
        return any(str(port) == self.place[1] and state == "ESTABLISHED" for _, port, state in self.starter.dials)

    @property
    def line(self) -> str:
        options = [f"--{name} {value}" for name, value in self.starter.asked.items()]
        return " ".join([f"{self.host}: {self.program} (pid {self.starter.pid})", *options])


@dataclass(frozen=True)
class Rendezvous:
    """The launchers that have no ranks yet, and the hosts without launchers."""

    waiting: tuple[Waiting, ...]  # launchers that waited; ``works``: those still busy, starting or importing torch
    works: tuple[Waiting, ...]
    absent: tuple[str, ...]  # examined hosts without any; ``unseen``: hosts that could not be examined
    unseen: tuple[str, ...]


def find_launchers(snapshot: HangSnapshot) -> Rendezvous:
    """Return the launchers without ranks; a launcher that appeared or ended between the samples counts as working."""
    waiting: list[Waiting] = []
    works: list[Waiting] = []
    absent, unseen = [], []
    for host in snapshot.hosts:
        before, after = () if host.job is None else host.job.starters, host.starters
        if host.job is None or host.failure or isinstance(before, Unknown) or isinstance(after, Unknown):
            unseen.append(host.name)
            continue
        first, last = ({entry.pid: entry for entry in some} for some in (before, after))
        for pid, entry in {**first, **last}.items():
            still = pid in first and pid in last and not _works(first[pid], last[pid], snapshot.interval_s)
            if (launcher := Waiting(host.name, entry)).meets:
                (waiting if still else works).append(launcher)
        if not first and not last:
            absent.append(host.name)
    some = _largest_job(waiting)
    # the minimum is there, and "MIN:MAX" lets them wait for more
    ranged = some and _all_there(some) and any(":" in entry.option("nnodes") for entry in some)
    if ranged and min(entry.starter.age_s for entry in some) < LAST_CALL_S:
        some, works = (), [*works, *some]
    return Rendezvous(some, tuple(works), tuple(absent), tuple(unseen))


def _largest_job(waiting: list[Waiting]) -> tuple[Waiting, ...]:
    """Return the launchers of the largest job.

    Launchers of incomplete jobs on other hosts are included, because they might belong to the largest job.
    """
    groups = sorted(grouped((entry.meeting, entry) for entry in waiting).values(), key=lambda some: -len(some))
    result: list[Waiting] = []
    for some in groups:
        hosts = {entry.host for entry in result}
        if not result or not (_all_there(some) or _all_there(result) or any(entry.host in hosts for entry in some)):
            result += some
    return tuple(result)


def _all_there(some: Sequence[Waiting]) -> bool:
    return 0 < some[0].nodes <= len(some)


def _works(first: Starter, last: Starter, interval_s: float) -> bool:
    """Return whether the launcher worked between the samples, for example by importing torch."""
    if first.state is None or last.state is None:
        return True
    return "D" in (first.state.state, last.state.state) or worked(first.state, last.state, interval_s)


def find_launchers_fault(rendezvous: Rendezvous) -> RendezvousFault | None:
    """Return the most certain reason why no rank has started, or None if a launcher is still working."""
    some = rendezvous.waiting
    if not some or rendezvous.works:
        return None
    reason = _different(some) or _same_number(some) or _too_few(rendezvous) or _at_store(some)
    lines, pids = tuple(entry.line for entry in some[:MOST_LINES]), tuple(entry.starter.pid for entry in some)
    return replace(reason, evidence=lines, pids=pids)


def _different(some: tuple[Waiting, ...]) -> RendezvousFault | None:
    """Return the fault if the launchers on different nodes have different options.

    Addresses are not compared, because a machine can have several addresses.
    """
    options: dict[str, Callable[[Waiting], str]] = {
        "--nnodes": lambda launcher: launcher.option("nnodes", "1"),
        "--rdzv_backend": lambda launcher: launcher.backend,
        "--rdzv_id": lambda launcher: launcher.option("rdzv_id", "none"),
        "the port": lambda launcher: launcher.place[1],
    }
    for option, value in options.items():
        groups = grouped((value(launcher), launcher.host) for launcher in some)
        if len(groups) > 1:
            by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
            words = ", ".join(f"{value} on {fold(hosts)}" for value, hosts in by_size[:4])
            minority = tuple(dict.fromkeys(host for _, hosts in by_size[1:] for host in hosts))
            advice = "End the job on all nodes, and start it with the same options on every node."
            return RendezvousFault(minority, f"The nodes can't meet: {option} is {words}.", advice)
    return None


def _same_number(some: tuple[Waiting, ...]) -> RendezvousFault | None:
    """Return the fault if launchers have the same node rank; without ``--node_rank``, every node has rank 0."""
    if any(entry.backend != STATIC for entry in some):
        return None
    groups = grouped((entry.option("node_rank", "0"), entry.host) for entry in some)
    for number, hosts in groups.items():
        if len(hosts) > 1:
            flag = all("node_rank" in entry.starter.asked for entry in some if entry.option("node_rank", "0") == number)
            words = "" if flag else ", the default"
            where = tuple(dict.fromkeys(hosts))
            who = f"{fold(where)} all" if len(where) > 1 else f"{len(hosts)} launchers on {where[0]}"
            message = f"{who} have --node_rank {number}{words}."
            return RendezvousFault(where, message, "Give every node its own --node_rank, 0 on the master.")
    return None


def _too_few(rendezvous: Rendezvous) -> RendezvousFault | None:
    some, nodes = rendezvous.waiting, rendezvous.waiting[0].nodes
    if len(some) >= nodes:
        return None
    program, where = some[0].program, fold(dict.fromkeys(launcher.host for launcher in some))
    message = f"{program} on {where} waits for {nodes} nodes"
    if rendezvous.absent:
        message += f"; none runs on {fold(rendezvous.absent)}"
    if rendezvous.unseen:
        message += f"; {fold(rendezvous.unseen)} could not be examined"
    if not rendezvous.absent and not rendezvous.unseen:
        message += f", and {plural(len(some), 'node')} {'was' if len(some) == 1 else 'were'} started on the hosts here"
    start = f"Start it there, too{_missing_number(some)}. If it was started, its output shows why it exited."
    advice = start if rendezvous.absent else f"Start the other nodes, too{_missing_number(some)}, or lower --nnodes."
    hosts = rendezvous.absent or rendezvous.unseen or tuple(dict.fromkeys(launcher.host for launcher in some))
    return RendezvousFault(hosts, f"{message}.", advice)


def _missing_number(some: tuple[Waiting, ...]) -> str:
    if any(launcher.backend != STATIC for launcher in some) or some[0].nodes > len(some) + 1:
        return ""
    missing = set(map(str, range(some[0].nodes))) - {launcher.option("node_rank", "0") for launcher in some}
    return f", with --node_rank {next(iter(missing))}" if len(missing) == 1 else ""


def _at_store(some: tuple[Waiting, ...]) -> RendezvousFault:
    """Return the fault if no launcher is missing. The fault depends on which launchers are connected to the store."""
    away = [launcher for launcher in some if not launcher.connected]
    # other stores, such as etcd, are only contacted now and then
    if not away or len(away) == len(some) or any(launcher.backend not in PORTS for launcher in some):
        away = list(some)
    hosts = tuple(dict.fromkeys(launcher.host for launcher in away))
    address, port = away[0].place
    advice = f"`nccl-doctor check` with --master-port {port}"
    if len(away) == len(some):
        message = f"{some[0].program} on {fold(hosts)} waits for the other nodes at {address}:{port}."
        return RendezvousFault(hosts, message, f"{advice} shows whether they can reach each other.")
    message = f"{fold(hosts)} can't reach the nodes' store at {address}:{port}."
    return RendezvousFault(hosts, message, f"{advice} finds the cause.")


@dataclass(frozen=True)
class RendezvousFault:
    """The reason why ranks, or launchers without ranks, wait for each other indefinitely, and the remedy."""

    hosts: tuple[str, ...]
    message: str
    advice: str
    evidence: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # ranks that it is about; empty if no rank has started
    pids: tuple[int, ...] = ()  # PIDs of the waiting launchers

    @property
    def finding(self) -> tuple[str, Finding]:
        facts = {"ranks": list(self.ranks)} if self.ranks else {"pids": list(self.pids)}
        fix = Fix(summary=self.advice)
        return "rendezvous-waits", Finding(
            hosts=self.hosts, message=self.message, evidence=self.evidence, facts=facts, fix=fix
        )


def find_ranks_fault(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> RendezvousFault | None:
    """Return the reason why the rendezvous of the ranks is incomplete, or None if unknown."""
    missing = set(range(world_size(ranks))) - set(ranks)
    return _elsewhere(snapshot, ranks, missing) or _twice(snapshot, missing) or _without_store(ranks)


def _elsewhere(snapshot: HangSnapshot, ranks: dict[int, ObservedRank], missing: set[int]) -> RendezvousFault | None:
    """Return the fault if missing ranks were started for a different job or rendezvous."""
    if any(rank.place is not None and not rank.place.starts for rank in ranks.values() if not rank.gone):
        return None
    rank = next(iter(ranks.values())).job_rank
    groups: dict[str, list[tuple[str, JobRank]]] = {}
    for host in snapshot.hosts:
        for stray in host.misnumbered_ranks:
            variables = {
                "MASTER_ADDR": (stray.master_addr, rank.master_addr),
                "MASTER_PORT": (stray.master_port, rank.master_port),
                "WORLD_SIZE": (stray.world_size, rank.world_size),
            }
            differ = [
                f"{name} {value}, the others with {ours}" for name, (value, ours) in variables.items() if value != ours
            ]
            if differ and stray.rank in missing:
                groups.setdefault(" and ".join(differ), []).append((host.name, stray))
    if not groups:
        return None
    words, some = max(groups.items(), key=lambda item: len(item[1]))
    hosts = tuple(dict.fromkeys(name for name, _ in some))
    numbers = tuple(sorted(stray.rank for _, stray in some))
    verb = "was" if len(numbers) == 1 else "were"
    return RendezvousFault(
        ranks=numbers,
        hosts=hosts,
        message=f"{capital(ranks_of(list(numbers)))} on {fold(hosts)} {verb} started with {words}.",
        advice="End the job on all hosts, and start it with the same values on every host.",
        evidence=tuple(_line(name, stray) for name, stray in some[:MOST_LINES]),
    )


def _twice(snapshot: HangSnapshot, missing: set[int]) -> RendezvousFault | None:
    """Return the fault if two processes have the same rank while another rank is missing."""
    by_rank = grouped((rank.rank, (host.name, rank)) for host in snapshot.hosts if host.job for rank in host.job.ranks)
    double = {number: some for number, some in by_rank.items() if len(some) > 1}
    if not double or len(missing) < len(double) or any(host.failure for host in snapshot.hosts):
        return None
    first = min(double)
    where = " and on ".join(f"{name} (pid {rank.pid})" for name, rank in double[first])
    lines = [_line(name, rank) for some in double.values() for name, rank in some]
    return RendezvousFault(
        ranks=tuple(sorted(double)),
        hosts=tuple(dict.fromkeys(name for some in double.values() for name, _ in some)),
        message=f"Rank {first} runs on {where}, but {ranks_of(sorted(missing))} nowhere.",
        advice="Every process needs its own RANK: torchrun assigns them from --node_rank.",
        evidence=tuple(lines[:MOST_LINES]),
    )


def _without_store(ranks: dict[int, ObservedRank]) -> RendezvousFault | None:
    """Return the fault if all ranks wait in ``init_process_group`` and some are not connected to the store."""
    some = [rank for rank in ranks.values() if not rank.gone]
    if not all(rank.place is not None and rank.place.starts and rank.looks for rank in some):
        return None
    reached = {rank.rank: _reaches_store(rank) for rank in some}
    away = [rank for rank in some if reached[rank.rank] is False]
    if not away or len(away) == len(some) or None in reached.values():
        return None
    at = f"{away[0].job_rank.master_addr}:{away[0].job_rank.master_port}"
    home = {rank.host for rank in some if reached[rank.rank]}
    hosts = tuple(dict.fromkeys(rank.host for rank in away))
    if len(home) == 1 and len(hosts) > 1:
        subject, hosts = f"Only ranks on {fold(home)} reach", tuple(home)
    else:
        numbers = ranks_of([rank.rank for rank in away])
        subject = f"{capital(numbers)} on {fold(hosts)} {'does' if len(away) == 1 else 'do'} not reach"
    return RendezvousFault(
        ranks=tuple(rank.rank for rank in away),
        hosts=hosts,
        message=f"{subject} the ranks' store at {at}: all wait in init_process_group.",
        advice=f"`nccl-doctor check` with --master-port {away[0].job_rank.master_port} finds the cause.",
        evidence=tuple(_line(rank.host, rank.job_rank) for rank in away[:MOST_LINES]),
    )


def _reaches_store(rank: ObservedRank) -> bool | None:
    """Return whether a rank had a connection to the store, or None if this is unknown."""
    port, flows = rank.job_rank.master_port, [look.flows for look in rank.looks]
    if any(isinstance(some, Unknown) for some in flows):
        return None
    held = [flow for some in flows if not isinstance(some, Unknown) for flow in some]
    return any(flow.remote[1] == port and flow.state == "ESTABLISHED" for flow in held)


def _line(host: str, rank: JobRank) -> str:
    where = f"{rank.master_addr}:{rank.master_port}"
    return f"{host}: rank {rank.rank} of {rank.world_size} (pid {rank.pid}), master {where}"
