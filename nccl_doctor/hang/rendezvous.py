"""Launchers that wait for each other before there is a rank: who is not there, or was started otherwise.

torchrun gives its nodes numbers when as many have met as ``--nnodes`` says, at one store. A node that was not started,
one with another port or id, two with one ``--node_rank``: all others wait, and print nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nccl_doctor.hang.folds import MOST_LINES
from nccl_doctor.hang.observed_rank import worked
from nccl_doctor.hang.unmet import Unmet
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.rank_look import HangSnapshot, Starter
from nccl_doctor.text.hostlist import fold, grouped, plural

STATIC, C10D = "static", "c10d"
PORTS = {STATIC: "29500", C10D: "29400"}
"""torchrun's own where none is given (torch/distributed/run.py; c10d_rendezvous_backend.py)."""
MOST_NODES = 1 << 16
LAST_CALL_S = 60.0
"""Twice what torchrun waits for more nodes than the fewest it needs (dynamic_rendezvous.py)."""


@dataclass(frozen=True)
class Waiting:
    """A launcher that has no rank yet."""

    host: str
    starter: Starter

    def told(self, name: str, default: str = "") -> str:
        """What it was told, by torchrun's name of the option."""
        return self.starter.asked.get(name, default)

    @property
    def program(self) -> str:
        """Its name as people know it."""
        name = self.starter.program
        return "torchrun" if name.startswith("torch.distributed.") else name

    @property
    def backend(self) -> str:
        """Of its rendezvous."""
        return self.told("rdzv_backend", STATIC)

    @property
    def place(self) -> tuple[str, str]:
        """Address and port at which the nodes meet."""
        address, colon, port = self.told("rdzv_endpoint").rpartition(":")
        if colon and port.isdigit():
            return address, port
        address = self.told("rdzv_endpoint") or self.told("master_addr")
        return address, self.told("master_port") or PORTS.get(self.backend, "")

    @property
    def meeting(self) -> tuple[str, ...]:
        """What all nodes of a job have in common; addresses may be names of one machine."""
        return self.told("nnodes", "1"), self.backend, self.told("rdzv_id", "none"), self.place[1]

    @property
    def nodes(self) -> int:
        """How many it waits for, of "MIN:MAX" the first; 0 where nobody can tell."""
        least = self.told("nnodes", "1").partition(":")[0]
        return int(least) if least.isascii() and least.isdigit() and int(least[:8]) <= MOST_NODES else 0

    @property
    def meets(self) -> bool:
        """Whether it waits for others at all: a static start of one node does not."""
        return self.nodes != 1 or self.backend != STATIC

    @property
    def connected(self) -> bool:
        """Whether it has reached the store."""
        return any(str(port) == self.place[1] and state == "ESTABLISHED" for _, port, state in self.starter.dials)

    @property
    def line(self) -> str:
        """How it was started."""
        options = [f"--{name} {value}" for name, value in self.starter.asked.items()]
        return " ".join([f"{self.host}: {self.program} (pid {self.starter.pid})", *options])


@dataclass(frozen=True)
class Rendezvous:
    """What the launchers without ranks show.

    Attributes:
        waiting: those that waited; ``works`` those that were still at it: starting, importing torch.
        absent: the hosts that were looked at and have none; ``unseen`` those that nobody could look at.
    """

    waiting: tuple[Waiting, ...]
    works: tuple[Waiting, ...]
    absent: tuple[str, ...]
    unseen: tuple[str, ...]


def see(snapshot: HangSnapshot) -> Rendezvous:
    """The launchers without ranks; one that came or went between the looks was starting, or has started its ranks."""
    waiting: list[Waiting] = []
    works: list[Waiting] = []
    absent, unseen = [], []
    for host in snapshot.hosts:
        before, after = () if host.job is None else host.job.starters, host.starters
        if host.job is None or host.failure or isinstance(before, Unknown) or isinstance(after, Unknown):
            unseen.append(host.name)
            continue
        first, last = ({one.pid: one for one in some} for some in (before, after))
        for pid, one in {**first, **last}.items():
            seen_twice = pid in first and pid in last
            still = seen_twice and not _works(first[pid], last[pid], snapshot.interval_s)
            if (launcher := Waiting(host.name, one)).meets:
                (waiting if still else works).append(launcher)
        if not first and not last:
            absent.append(host.name)
    some = _one_job(waiting)
    if _last_call(some):
        some, works = (), [*works, *some]
    return Rendezvous(some, tuple(works), tuple(absent), tuple(unseen))


def _one_job(waiting: list[Waiting]) -> tuple[Waiting, ...]:
    """Without those of other jobs: they have all their nodes, or a launcher on a host that has one of the largest."""
    groups = sorted(grouped((one.meeting, one) for one in waiting).values(), key=lambda some: -len(some))
    found: list[Waiting] = []
    for some in groups:
        taken = {one.host for one in found}
        if not found or not (_all_there(some) or _all_there(found) or any(one.host in taken for one in some)):
            found += some
    return tuple(found)


def _all_there(some: Sequence[Waiting]) -> bool:
    return 0 < some[0].nodes <= len(some)


def _last_call(some: Sequence[Waiting]) -> bool:
    """Whether enough are there, and "MIN:MAX" lets them wait a while for more."""
    if not some or not _all_there(some) or not any(":" in one.told("nnodes") for one in some):
        return False
    return min(one.starter.age_s for one in some) < LAST_CALL_S


def _works(first: Starter, last: Starter, interval_s: float) -> bool:
    """Whether it was at something between the looks: importing torch, from a slow file system too."""
    if first.state is None or last.state is None:
        return True
    return "D" in (first.state.state, last.state.state) or worked(first.state, last.state, interval_s)


def unmet(seen: Rendezvous) -> Unmet | None:
    """The one reason for which no rank is started, the surest first."""
    some = seen.waiting
    if not some or seen.works:
        return None
    reason = _different(some) or _same_number(some) or _too_few(seen) or _not_connected(some) or _each_other(some)
    lines, pids = tuple(one.line for one in some[:MOST_LINES]), tuple(one.starter.pid for one in some)
    return replace(reason, evidence=lines, pids=pids)


def _different(some: tuple[Waiting, ...]) -> Unmet | None:
    """Launchers that can't meet; addresses may be names of one machine and are not compared."""
    told: dict[str, Callable[[Waiting], str]] = {
        "--nnodes": lambda one: one.told("nnodes", "1"),
        "--rdzv_backend": lambda one: one.backend,
        "--rdzv_id": lambda one: one.told("rdzv_id", "none"),
        "the port": lambda one: one.place[1],
    }
    for option, value in told.items():
        groups = grouped((value(one), one.host) for one in some)
        if len(groups) > 1:
            by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
            words = ", ".join(f"{value} on {fold(hosts)}" for value, hosts in by_size[:4])
            odd = tuple(dict.fromkeys(host for _, hosts in by_size[1:] for host in hosts))
            advice = "End it everywhere, and start it with the same options on every node."
            return Unmet(odd, f"The nodes can't meet: {option} is {words}.", advice)
    return None


def _same_number(some: tuple[Waiting, ...]) -> Unmet | None:
    """Two with one number; without ``--node_rank`` every node is the first."""
    if any(one.backend != STATIC for one in some):
        return None
    groups = grouped((one.told("node_rank", "0"), one.host) for one in some)
    for number, hosts in groups.items():
        if len(hosts) > 1:
            given = all("node_rank" in one.starter.asked for one in some if one.told("node_rank", "0") == number)
            words = "" if given else ", the default where none is given"
            where = tuple(dict.fromkeys(hosts))
            who = f"{fold(where)} all" if len(where) > 1 else f"{len(hosts)} launchers on {where[0]}"
            message = f"{who} have --node_rank {number}{words}."
            return Unmet(where, message, "Give every node its own --node_rank, 0 on the master.")
    return None


def _too_few(seen: Rendezvous) -> Unmet | None:
    some, nodes = seen.waiting, seen.waiting[0].nodes
    if len(some) >= nodes:
        return None
    program, where = some[0].program, fold(dict.fromkeys(one.host for one in some))
    message = f"{program} on {where} waits for {nodes} nodes"
    if seen.absent:
        message += f"; none runs on {fold(seen.absent)}"
    if seen.unseen:
        message += f"; {fold(seen.unseen)} could not be looked at"
    if not seen.absent and not seen.unseen:
        message += f", and {plural(len(some), 'node')} {'was' if len(some) == 1 else 'were'} started on the hosts here"
    start = f"Start it there too{_missing_number(some)}. If it was: its own output says why it ended."
    advice = start if seen.absent else f"Start the others too{_missing_number(some)}, or lower --nnodes."
    hosts = seen.absent or seen.unseen or tuple(dict.fromkeys(one.host for one in some))
    return Unmet(hosts, f"{message}.", advice)


def _missing_number(some: tuple[Waiting, ...]) -> str:
    if any(one.backend != STATIC for one in some) or some[0].nodes > len(some) + 1:
        return ""
    missing = set(map(str, range(some[0].nodes))) - {one.told("node_rank", "0") for one in some}
    return f", with --node_rank {next(iter(missing))}" if len(missing) == 1 else ""


def _not_connected(some: tuple[Waiting, ...]) -> Unmet | None:
    away = [one for one in some if not one.connected]
    # other stores, as etcd, are spoken to now and then
    if not away or len(away) == len(some) or any(one.backend not in PORTS for one in some):
        return None
    hosts = tuple(dict.fromkeys(one.host for one in away))
    address, port = away[0].place
    message = f"{fold(hosts)} {'does' if len(hosts) == 1 else 'do'} not reach the nodes' store at {address}:{port}."
    return Unmet(hosts, message, f"`nccl-doctor check` with --master-port {port} names what is in the way.")


def _each_other(some: tuple[Waiting, ...]) -> Unmet:
    hosts = tuple(dict.fromkeys(one.host for one in some))
    address, port = some[0].place
    message = f"{some[0].program} on {fold(hosts)} waits for the other nodes at {address}:{port}."
    return Unmet(hosts, message, f"`nccl-doctor check` with --master-port {port} tells whether they reach each other.")
