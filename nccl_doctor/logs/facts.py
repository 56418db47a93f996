"""Facts of a run that are no fault: versions, interfaces, ranks, how far each came.

The same reader serves the all-reduce, whose ranks run with ``NCCL_DEBUG=INFO``: :func:`facts_of`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from nccl_doctor.logs.prefix import Prefix, number, peel, records, tidy
from nccl_doctor.text.bounds import safe_regex


class Milestone(IntEnum):
    """How far a process came on NCCL's way to a communicator; without lines of NCCL it is at the beginning."""

    STARTED = 0
    INTERFACE = 1
    NETWORK = 2
    INIT_START = 3
    BOOTSTRAPPED = 4
    CONNECTED = 5
    COMPLETE = 6


@dataclass(frozen=True)
class Interface:
    """An interface and its address, as NCCL prints them: ``eth0:10.0.0.1<0>``; ``address`` may hold a ``%scope``."""

    name: str
    address: str


@dataclass
class Process:
    """A process of the job.

    Attributes:
        rank: the first that NCCL gave it, None where no line says it.
        ranks: all of them, where it drives several GPUs, as JAX does.
        network: what NCCL sends by, "Socket", "IB" or a plugin's name.
        plugin: the network plugin that it loaded, with the version of its interface: "Libfabric (v8)".
    """

    host: str
    pid: str
    rank: int | None = None
    world_size: int | None = None
    ranks: set[int] = field(default_factory=set)
    interfaces: list[Interface] = field(default_factory=list)
    network: str | None = None
    plugin: str | None = None
    milestone: Milestone = Milestone.STARTED
    transports: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Process) -> None:
        """Takes over what was told of the same process elsewhere."""
        if self.rank is None or (other.world_size or 0) > (self.world_size or 0):
            self.rank, self.world_size, self.ranks = other.rank, other.world_size, other.ranks
        elif other.world_size == self.world_size:
            self.ranks |= other.ranks
        self.interfaces += [interface for interface in other.interfaces if interface not in self.interfaces]
        self.network = self.network or other.network
        self.plugin = self.plugin or other.plugin
        self.milestone = max(self.milestone, other.milestone)
        self.transports += other.transports


@dataclass(frozen=True)
class FactRule:
    """A wording of a fact; ``kind`` is the method of ``Facts`` that takes it."""

    kind: str
    pattern: str
    sample: str

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """Made when a line first needs it."""
        return safe_regex(self.pattern)


RULES: tuple[FactRule, ...] = (
    FactRule("nccl", r"[NR]CCL version ?:? ?(?P<version>\d+\.\d+(?:\.\d+)?)", "NCCL version 2.21.5+cuda12.4"),
    FactRule("torch", r"\btorch==(?P<version>\d[\w.+]*)", "[pip3] torch==2.4.1"),
    FactRule(
        "torch", r"Py[Tt]orch(?: [Vv]ersion)?:? (?P<version>\d+\.\d+\.\d+[\w.+]*)", "PyTorch version: 2.4.1+cu124"
    ),
    FactRule(
        "torch", r"torch(?: version|\.__version__)[:=]? ?(?P<version>\d+\.\d+\.\d+[\w.+]*)", "torch version: 2.4.1"
    ),
    FactRule("interface", r"Bootstrap ?: Using ", "n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"),
    FactRule(
        "interface",
        r"NET(?:/Socket)? ?: Using (?:interface )?",
        "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    ),
    FactRule("interface", r"; OOB ", "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
    FactRule(
        "plugin",
        r"NET/Plugin: Loaded net plugin (?P<plugin>\w.*\(v\d+\))",
        "n1:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v8)",
    ),
    FactRule("network", r"Using network (?P<network>\w.*)", "n1:1:2 [0] NCCL INFO Using network Socket"),
    FactRule(
        "init",
        r"comm \S+ rank (?P<rank>\d+) n[rR]anks (?P<size>\d+) .*- Init (?P<end>START|COMPLETE)",
        "n1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 4 nranks 16 cudaDev 4 busId 9a000 commId 0x2 - Init START",
    ),
    FactRule(
        "rank", r"comm \S+ rank (?P<rank>\d+) nranks (?P<size>\d+)", "n1:1:2 [0] NCCL INFO comm 0x5 rank 2 nranks 4"
    ),
    FactRule(
        "rank",
        r"Init timings.*rank (?P<rank>\d+) nranks (?P<size>\d+)",
        "n1:1:2 [0] NCCL INFO Init timings - ncclCommInitRank: rank 1 nranks 16 total 1.57",
    ),
    FactRule(
        "nodes", r" nNodes (?P<nodes>\d+) ", "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8"
    ),
    FactRule("bootstrapped", r"Bootstrap timings total", "n1:1:2 [0] NCCL INFO Bootstrap timings total 0.01"),
    FactRule("connected", r"Connected all rings", "n1:1:2 [0] NCCL INFO Connected all rings"),
    FactRule(
        "ifname",
        r"NCCL_SOCKET_IFNAME (?:set (?:by environment )?to|=) ?(?P<value>[\w^=,.:@-]+)",
        "n1:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eno1",
    ),
    FactRule(
        "torn",
        r"rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) .*- (?:Destroy|Abort) COMPLETE",
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 2 nranks 4 cudaDev 2 busId 1000 - Destroy COMPLETE",
    ),
    FactRule(
        "summary",
        r"(?:  host      : (?P<host>[\w.-]+)|  rank      : (?P<rank>\d{1,7}) \(local_rank: \d+\)"
        r"|  exitcode  : (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\))",
        "  rank      : 3 (local_rank: 3)",
    ),
    FactRule("srun", r"srun: error: (?P<host>[\w.-]+): task", "srun: error: n1: task 0: Exited with exit code 1"),
    FactRule("stated", r"(?:dist_rank|global_rank|GLOBAL_RANK)\S{0,3} ?(?P<rank>\d{1,6})\b", "self.dist_rank: 1"),
    FactRule(
        "ras",
        r"RAS failed to establish a client listening socket",
        "n1:1:2 [0] NCCL INFO RAS failed to establish a client listening socket at 127.0.0.1<28028>",
    ),
    FactRule(
        "failed",
        r"\b(?:group|init|bootstrap|enqueue|proxy|transport|transport/net|misc/socket|graph/\w+)"
        r"\.(?:cc|cu):\d+ -> [12345678]\b",
        "n1:1:2 [0] NCCL INFO init.cc:1007 -> 3",
    ),
    FactRule(
        "failed",
        r"Traceback \(most recent call last\)|srun: error: |exitcode: |terminate called after|Test (?:NCCL )?failure",
        "Traceback (most recent call last):",
    ),
    FactRule("well", r"Out of bounds values ?: 0 OK", "# Out of bounds values : 0 OK"),
    FactRule("busbw", r"# Avg bus bandwidth *: *(?P<rate>\d{1,6}(?:\.\d{1,9})?)", "# Avg bus bandwidth    : 92.1234"),
    FactRule(
        "row",
        r"^ +\d+ +\d+ +(?:b?float\d*|half|double"
        r"|u?int8|u?int32|u?int64|fp8_\w+|f8e4m3|f8e5m2) +(?:sum|none|prod|min|max|avg)\b",
        "        1048576        262144     float     sum    1762.4    0.59    0.59  0e+00",
    ),
    FactRule(
        "well",
        r"worker group successfully finished",
        "I1104 10:40:04 77 torch/elastic/agent/server/api.py:879] [default] worker group successfully finished",
    ),
    FactRule("well", r"'train_runtime': \d", "{'train_runtime': 812.1, 'train_loss': 1.22, 'epoch': 1.0}"),
    FactRule(
        "serving", r"INFO: +Application startup complete", "(APIServer pid=1) INFO:     Application startup complete."
    ),
    FactRule(
        "serving",
        r"The server is fired up and ready to roll",
        "[2026-07-20 04:18:02] The server is fired up and ready to roll!",
    ),
    FactRule("well", r"`Trainer\.fit` stopped: `max_", "`Trainer.fit` stopped: `max_epochs=3` reached."),
)
"""What every log is read for."""

CHANNEL_RULES: tuple[FactRule, ...] = (
    FactRule(
        "channel",
        r"(?:Channel|Ring) \d+\S* : \d+\S* -> \d+\S* .*via (?P<way>\S+)",
        "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    ),
    FactRule(
        "ring", r"Channel (?P<channel>\d+)/\d+ : (?P<order>[ \d]+)$", "n1:1:2 [0] NCCL INFO Channel 00/02 :    0   1"
    ),
    FactRule("trees", r"Trees (?P<trees>\[0\].*)", "n1:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1"),
)
"""Rings, trees and ways, of which a large job prints hundreds of thousands of lines."""

MAX_RANKS = 256
"""More GPUs than this no process drives."""

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
        serving: an engine's server answers requests, which it does once all its ranks have met.
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
    serving: bool = False
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

    @property
    def came_together(self) -> bool:
        """A rank came to its communicator, which needs all of them."""
        return any(process.milestone is Milestone.COMPLETE for process in self.processes.values())

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
        self.serving = self.serving or other.serving
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
            process.rank, process.world_size, process.ranks = rank, size, {rank}
        elif size == process.world_size and len(process.ranks) < MAX_RANKS:
            process.ranks.add(rank)

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

    def _serving(self, _match: re.Match[str], _prefix: Prefix) -> None:
        self.serving = True

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
