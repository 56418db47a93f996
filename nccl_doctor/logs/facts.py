"""What NCCL and torch tell about a run that is not a fault: versions, interfaces, ranks, how far each one came.

The same reader serves the all-reduce, whose ranks run with ``NCCL_DEBUG=INFO``: :func:`facts_of`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nccl_doctor.logs.fact_rules import CHANNEL_RULES, RULES, FactRule
from nccl_doctor.logs.prefix import Prefix, peel, records
from nccl_doctor.logs.rank_process import Interface, Milestone, Process
from nccl_doctor.logs.text import number, tidy

MAX_PROCESSES = 65_536
"""More processes than this are not kept apart: memory must not grow with a log that was made up."""


@dataclass
class Facts:
    """All that was read; dictionaries keep the order of the log.

    Attributes:
        nccl_versions: version to number of lines; torch_versions likewise.
        ifname: the value of NCCL_SOCKET_IFNAME, as NCCL prints it.
        rings: channel to the ranks in ring order, for channels whose order is printed.
        trees: rank to its ``Trees`` line.
        rows: lines of a benchmark's table.
        busbw: its average, in GB/s.
        gave_up: a call of NCCL came back with an error, or a process with an exception.
        torn_down: a communicator was ended, or aborted, after its use.
        summary_host: where torchrun's summary saw the first failure, and ``summary_rank`` on which rank.
        ended_well: a line that only a run that came to its end prints.
        failed_hosts: hosts that the launcher names in its errors.
        world_size: the largest communicator.
    """

    nccl_versions: Counter[str] = field(default_factory=Counter)
    torch_versions: Counter[str] = field(default_factory=Counter)
    processes: dict[tuple[str, str], Process] = field(default_factory=dict)
    ifname: str | None = None
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: dict[int, str] = field(default_factory=dict)
    ended_well: bool = False
    failed_hosts: dict[str, None] = field(default_factory=dict)
    stated_ranks: dict[int, None] = field(default_factory=dict)
    world_size: int | None = None
    nodes: int | None = None
    ras_failures: int = 0
    gave_up: bool = False
    torn_down: bool = False
    summary_host: str | None = None
    summary_rank: int | None = None
    rows: int = 0
    busbw: float | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that NCCL's lines name."""
        return tuple(dict.fromkeys(process.host for process in self.processes.values()))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that lines of NCCL name, sorted."""
        return tuple(sorted({p.rank for p in self.processes.values() if p.rank is not None}))

    def of_host(self, host: str | None) -> list[Process]:
        """The processes of a host."""
        return [process for process in self.processes.values() if process.host == host]

    def process(self, prefix: Prefix) -> Process | None:
        """The process that a line of NCCL came from."""
        return self.processes.get((prefix.host, prefix.pid)) if prefix.host and prefix.pid else None

    def take(self, kind: str, match: re.Match[str], prefix: Prefix) -> None:
        """Notes one matched line."""
        getattr(self, f"_{kind}")(match, prefix)

    def merge(self, other: Facts) -> None:
        """Takes over what another part of the same logs told."""
        self.nccl_versions += other.nccl_versions
        self.torch_versions += other.torch_versions
        for key, process in other.processes.items():
            if key in self.processes:
                self.processes[key].merge(process)
            else:
                self.processes[key] = process
        self.ifname = self.ifname or other.ifname
        self.rings = {**other.rings, **self.rings}
        self.trees = {**other.trees, **self.trees}
        self.ended_well = self.ended_well or other.ended_well
        self.busbw = other.busbw if self.busbw is None else self.busbw
        self.gave_up = self.gave_up or other.gave_up
        self.torn_down = self.torn_down or other.torn_down
        self.summary_host = other.summary_host or self.summary_host
        self.summary_rank = self.summary_rank if other.summary_rank is None else other.summary_rank
        self.failed_hosts |= other.failed_hosts
        self.stated_ranks |= other.stated_ranks
        self.world_size = max(self.world_size or 0, other.world_size or 0) or None
        self.nodes = max(self.nodes or 0, other.nodes or 0) or None
        self.ras_failures += other.ras_failures
        self.rows += other.rows

    def _enter(self, prefix: Prefix) -> Process | None:
        if not prefix.host or not prefix.pid or prefix.level is None:
            return None
        key = (prefix.host, prefix.pid)
        if key not in self.processes and len(self.processes) >= MAX_PROCESSES:
            return None
        process = self.processes.setdefault(key, Process(*key))
        if process.rank is None and prefix.rank is not None:
            process.rank = prefix.rank
        return process

    def _reached(self, prefix: Prefix, milestone: Milestone) -> Process | None:
        process = self._enter(prefix)
        if process is not None:
            process.milestone = max(process.milestone, milestone)
        return process

    def _nccl(self, match: re.Match[str], prefix: Prefix) -> None:
        self.nccl_versions[match["version"]] += 1
        self._enter(prefix)

    def _torch(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.torch_versions[match["version"]] += 1

    def _interface(self, match: re.Match[str], prefix: Prefix) -> None:
        process = self._reached(prefix, Milestone.INTERFACE)
        if process is None:
            return
        for name, address in INTERFACE.findall(match.string[match.start() : match.end() + 400]):
            interface = Interface(name, address)
            if interface not in process.interfaces:
                process.interfaces.append(interface)

    def _network(self, match: re.Match[str], prefix: Prefix) -> None:
        process = self._reached(prefix, Milestone.NETWORK)
        if process is not None:
            process.network = match["network"]

    def _plugin(self, match: re.Match[str], prefix: Prefix) -> None:
        process = self._reached(prefix, Milestone.INTERFACE)
        if process is not None:
            process.plugin = match["plugin"]

    def _init(self, match: re.Match[str], prefix: Prefix) -> None:
        if number(match["size"]) == 1:
            return  # a communicator of one rank waits for nobody
        done = match["end"] == "COMPLETE"
        process = self._reached(prefix, Milestone.COMPLETE if done else Milestone.INIT_START)
        self._note_rank(process, match)

    def _rank(self, match: re.Match[str], prefix: Prefix) -> None:
        self._note_rank(self._enter(prefix), match)

    def _note_rank(self, process: Process | None, match: re.Match[str]) -> None:
        rank, size = number(match["rank"]), number(match["size"])
        if rank is None or size is None:
            return
        self.world_size = max(self.world_size or 0, size)
        if process is None:
            return
        if process.rank is None or size > (process.world_size or 0):
            process.rank, process.world_size = rank, size

    def _nodes(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.nodes = max(self.nodes or 0, number(match["nodes"]) or 0) or None

    def _bootstrapped(self, _match: re.Match[str], prefix: Prefix) -> None:
        self._reached(prefix, Milestone.BOOTSTRAPPED)

    def _connected(self, _match: re.Match[str], prefix: Prefix) -> None:
        self._reached(prefix, Milestone.CONNECTED)

    def _ifname(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.ifname = self.ifname or match["value"]

    def _ras(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.ras_failures += 1

    def _failed(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.gave_up = True

    def _row(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.rows += 1

    def _busbw(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.busbw, self.ended_well = float(match["rate"]), True

    def _well(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.ended_well = True

    def _torn(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.torn_down = True

    def _summary(self, match: re.Match[str], _prefix: Prefix) -> None:
        """Torchrun's summary ends with the root cause."""
        if match["host"]:
            self.summary_host = match["host"]
        elif match["rank"]:
            self.summary_rank = number(match["rank"])

    def _srun(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.failed_hosts.setdefault(match["host"])

    def _stated(self, match: re.Match[str], _prefix: Prefix) -> None:
        rank = number(match["rank"])
        if rank is not None:
            self.stated_ranks.setdefault(rank)

    def _channel(self, match: re.Match[str], prefix: Prefix) -> None:
        process = self._enter(prefix)
        if process is not None:
            process.transports[match["way"].rstrip(".,")] += 1

    def _ring(self, match: re.Match[str], prefix: Prefix) -> None:
        self._enter(prefix)
        channel, order = number(match["channel"]), tuple(map(number, match["order"].split()))
        if channel is not None:
            self.rings.setdefault(channel, tuple(rank for rank in order if rank is not None))

    def _trees(self, match: re.Match[str], prefix: Prefix) -> None:
        """A line stands before the rank is told of its process, and names it between its children and its parent."""
        self._enter(prefix)
        own = OWN_IN_TREE.search(match["trees"])
        rank = number(own[1]) if own else None
        if rank is not None:
            self.trees.setdefault(rank, match["trees"].strip())


OWN_IN_TREE = re.compile(r"->(\d{1,7})->")
INTERFACE = re.compile(r"(?<![\w.-])(?:\[\d+\])?([A-Za-z][\w.-]*(?::\d+)?):([0-9a-fA-F.:]+(?:%[\w.-]+)?)<\d+>")


def facts_of(lines: Iterable[str], rules: Sequence[FactRule] = (*RULES, *CHANNEL_RULES)) -> Facts:
    """The facts of an ``NCCL_DEBUG=INFO`` output, channels included, or those of some rules alone."""
    facts = Facts()
    for raw in lines:
        line = tidy(raw.rstrip("\r\n"))
        if "NCCL" not in line:
            continue
        for start, end in records(line):
            part = line[start:end]
            prefix = peel(part)
            for rule in rules:
                match = rule.compiled.search(part)
                if match is not None:
                    facts.take(rule.kind, match, prefix)
    return facts
