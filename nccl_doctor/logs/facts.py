"""Extracts facts about a run from logs, such as versions, interfaces, ranks, and the progress of each rank.

:func:`facts_of` parses the output of nccl-doctor's own all-reduce test, which runs with ``NCCL_DEBUG=INFO``.
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
    """Milestones that a process passes while it sets up an NCCL communicator.

    A process has reached only ``STARTED`` if none of its NCCL lines shows a later milestone.
    """

    STARTED = 0
    INTERFACE = 1
    NETWORK = 2
    INIT_START = 3
    BOOTSTRAPPED = 4
    CONNECTED = 5
    COMPLETE = 6


@dataclass(frozen=True)
class Interface:
    """A network interface and its address, which NCCL prints as ``eth0:10.0.0.1<0>``."""

    name: str
    address: str


@dataclass
class LoggedProcess:
    """A process of the job, as identified in NCCL's log lines.

    Attributes:
        rank: first rank of the process in its largest communicator; None if the log shows no rank.
        ranks: all ranks of the process; a process that uses several GPUs, as in JAX, has several ranks.
        network: network transport that NCCL uses, such as "Socket", "IB", or the name of a plugin.
        plugin: name of the network plugin and version of the plugin interface, such as "Libfabric (v8)".
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

    def merge(self, other: LoggedProcess) -> None:
        """Merge facts about the same process from another part of the logs."""
        if self.rank is None or (other.world_size or 0) > (self.world_size or 0):
            self.rank, self.world_size, self.ranks = other.rank, other.world_size, other.ranks
        elif other.world_size == self.world_size:
            self.ranks |= other.ranks
        self.interfaces = [*dict.fromkeys((*self.interfaces, *other.interfaces))]
        self.network = self.network or other.network
        self.plugin = self.plugin or other.plugin
        self.milestone = max(self.milestone, other.milestone)
        self.transports += other.transports


@dataclass(frozen=True)
class FactRule:
    """A pattern for a fact; ``kind`` determines how :class:`Facts` stores the fact."""

    kind: str
    pattern: str

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return safe_regex(self.pattern)


RULES: tuple[FactRule, ...] = (
    FactRule("nccl", r"[NR]CCL version ?:? ?(?P<version>\d+\.\d+(?:\.\d+)?)"),
    FactRule("nccl", r"is using nccl==(?P<version>\d+\.\d+(?:\.\d+)?)"),
    FactRule("torch", r"\btorch==(?P<version>\d[\w.+]*)"),
    FactRule("torch", r"Py[Tt]orch(?: [Vv]ersion)?:? (?P<version>\d+\.\d+\.\d+[\w.+]*)"),
    FactRule("torch", r"torch(?: version|\.__version__)[:=]? ?(?P<version>\d+\.\d+\.\d+[\w.+]*)"),
    FactRule("interface", r"Bootstrap ?: Using "),
    FactRule("interface", r"NET(?:/Socket)? ?: Using (?:interface )?"),
    FactRule("interface", r"; OOB "),
    FactRule("plugin", r"NET/Plugin: Loaded net plugin (?P<plugin>\w.*\(v\d+\))"),
    FactRule("network", r"Using network (?P<network>\w.*)"),
    FactRule("init", r"comm \S+ rank (?P<rank>\d+) n[rR]anks (?P<size>\d+) .*- Init (?P<end>START|COMPLETE)"),
    FactRule("rank", r"comm \S+ rank (?P<rank>\d+) nranks (?P<size>\d+)"),
    FactRule("rank", r"Init timings.*rank (?P<rank>\d+) nranks (?P<size>\d+)"),
    FactRule("nodes", r" nNodes (?P<nodes>\d+) "),
    FactRule("bootstrapped", r"Bootstrap timings total"),
    FactRule("connected", r"Connected all rings"),
    FactRule("chosen", r"cudaDriverVersion (?P<driver>\d{4,6})\b"),
    FactRule("chosen", r"[NR]CCL version .{1,24}[+-](?P<built_for>(?:cuda|hip|rocm)[\d.]+)"),
    FactRule("chosen", r"NET/IB ?: Using (?P<devices>\[0\]\w.{1,400}?) ?(?:\[RO\] ?)?(?:;|$)"),
    FactRule("chosen", r"Initializing (?P<plugin>aws-ofi-\S+ \S+)"),
    FactRule("chosen", r"Bytes -> Algo (?P<algorithm>\w+ proto \w+)"),
    FactRule("chosen", r"(?P<algorithm>NCCL_(?:ALGO|PROTO)) set by environment to (?P<value>[\w^,:;/@-]{1,64})"),
    FactRule("chosen", r"NCCL INFO (?P<channels>\d{1,4} coll channels, .{1,160}per peer)"),
    FactRule("chosen", r"NCCL_TOPO_FILE(?: set by environment to|[:=])? ?(?P<topology>/\S{1,300})"),
    FactRule("chosen", r"device +\d{1,3} \[0x\w{1,8}\] (?P<gpu>NVIDIA \w[\w .-]{1,60}\w)"),  # nccl-tests
    FactRule("chosen", r"^\|\s+\d{1,3}\s+(?P<gpu>NVIDIA \w[\w .-]{1,40}?\w) {2,}\S+ *\|"),  # nvidia-smi
    FactRule("chosen", r"WARN .{0,40}Missing \"?(?P<iommu>(?:amd_)?iommu=\w{1,4})"),  # RCCL, src/init.cc
    FactRule("chosen", r"GPU Direct RDMA (?P<gdr>Enabled|Disabled)"),
    FactRule("chosen", r"use ring PXN \d GDR (?P<gdr>[01])"),
    FactRule(
        "chosen",
        r"NCCL DIAG (?:\[\w+\] )?(?P<unjudged>\w[\w ]{0,40}: (?:diagnostics incomplete, gathered \d+/\d+ ranks"
        r"|.{0,60}(?:no usable IB device|cannot resolve the selected IB device|external tool missing|probe timed out"
        r"|unavailable|requires? root).{0,60}))",
    ),
    FactRule("ifname", r"NCCL_SOCKET_IFNAME (?:set (?:by environment )?to|=) ?(?P<value>[\w^=,.:@-]+)"),
    FactRule("torn", r"rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) .*- (?:Destroy|Abort) COMPLETE"),
    FactRule(
        "summary",
        r"(?:  host      : (?P<host>[\w.-]+)|  rank      : (?P<rank>\d{1,7}) \(local_rank: \d+\)"
        r"|  exitcode  : (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\))",
    ),
    FactRule(  # srun, pdsh, Hydra and Open MPI
        "exited",
        r"(?:srun: error: |pdsh@[\w.-]+: |RUNNING AT |with PID \d+ on node )(?P<host>[\w.-]+)"
        r"(?:: tasks? (?P<tasks>\d[\d,-]{0,200}): [^T]|: task [^\d]|: ssh exited| exited on signal|$)",
    ),
    FactRule("stated", r"(?:dist_rank|global_rank|GLOBAL_RANK)\S{0,3} ?(?P<rank>\d{1,6})\b"),
    FactRule("ras", r"RAS failed to establish a client listening socket"),
    FactRule(
        "failed",
        r"\b(?:group|init|bootstrap|enqueue|proxy|transport|transport/net"
        r"|misc/socket|graph/\w+)\.(?:cc|cu):\d+ -> [12345678]\b",
    ),
    FactRule(
        "failed",
        r"Traceback \(most recent call last\)|srun: error: |exitcode: |terminate called after|Test (?:NCCL )?failure",
    ),
    FactRule("well", r"Out of bounds values ?: 0 OK"),
    FactRule("busbw", r"# Avg bus bandwidth *: *(?P<rate>\d{1,6}(?:\.\d{1,9})?)"),
    FactRule(
        "row",
        r"^ +\d+ +\d+ +(?:b?float\d*|half|double|u?int8|u?int32|u?int64"
        r"|fp8_\w+|f8e4m3|f8e5m2) +(?:sum|none|prod|min|max|avg)\b",
    ),
    FactRule("well", r"worker group successfully finished|'train_runtime': \d"),
    FactRule("serving", r"INFO: +Application startup complete|The server is fired up and ready to roll"),
    FactRule("well", r"`Trainer\.fit` stopped: `max_"),
    FactRule("well", r"^(?i:(?:training|train|done training)[:,]? (?:is )?(?:done|complete|completed|finished))[.!]?$"),
)
"""Patterns for facts that are read from every log."""

CHANNEL_RULES: tuple[FactRule, ...] = (
    FactRule("channel", r"(?:Channel|Ring) \d+\S* : \d+\S* -> \d+\S* .*via (?P<way>\S+)"),
    FactRule("ring", r"Channel (?P<channel>\d+)/\d+ : (?P<order>[ \d]+)$"),
    FactRule("trees", r"Trees (?P<trees>\[0\].*)"),
)
"""Patterns for facts about rings, trees, and channels, for which a large job prints hundreds of thousands of lines."""

MAX_RANKS = 256
"""Maximum number of ranks to record for one process, which can have one rank for each of its GPUs."""

MAX_PROCESSES = 65_536
"""Maximum number of processes to record, so that a forged log can't use too much memory."""


_OF_SOURCES = frozenset({"exited"})
"""Kinds of facts that only :meth:`nccl_doctor.logs.log.Reading.note` stores."""
_FLAGS = {"failed": "gave_up", "serving": "serving", "torn": "torn_down", "well": "ended_well"}
_COUNTS = {"ras": "ras_failures", "row": "rows"}
"""Maps the kind of a line to the attribute of :class:`Facts` that is incremented for each line of this kind."""

_GDR = {"0": "not used", "1": "used", "Disabled": "not used", "Enabled": "used"}

_REACHED = {
    "plugin": Milestone.INTERFACE,
    "network": Milestone.NETWORK,
    "bootstrapped": Milestone.BOOTSTRAPPED,
    "connected": Milestone.CONNECTED,
}
"""Maps the kinds of log lines to milestones.

The named groups of a line's pattern are stored as attributes of the process that printed the line.
"""


@dataclass
class Facts:
    """Facts read from a log; dictionary entries are in the order of the log lines.

    Attributes:
        nccl_versions: number of lines that name each NCCL version.
        ifname: value of NCCL_SOCKET_IFNAME as printed by NCCL.
        rings: for each channel that the log shows, the ranks in ring order.
        trees: the ``Trees`` line of each rank.
        rows: number of rows in a benchmark's table; ``busbw`` is the table's average bus bandwidth in GB/s.
        gave_up: whether an NCCL call returned an error or a process ended with an exception.
        serving: whether an inference server accepts requests, which means that all ranks have connected.
        torn_down: whether a communicator was destroyed or aborted after use.
        summary_host: host of the root cause in torchrun's failure summary; ``summary_rank`` is the rank of the root
            cause.
        ended_well: whether the log contains a line that only a completed run prints.
        tasks: pairs of an srun task number and a rank; the rank is named in a line that the task printed.
        world_size: size of the largest communicator.
        chosen: topic, value, and host of details that no other attribute contains, such as GPU models and algorithms.
    """

    nccl_versions: Counter[str] = field(default_factory=Counter)
    torch_versions: Counter[str] = field(default_factory=Counter)
    processes: dict[tuple[str, str], LoggedProcess] = field(default_factory=dict)
    ifname: str | None = None
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: dict[int, str] = field(default_factory=dict)
    ended_well: bool = False
    tasks: dict[tuple[int, int], None] = field(default_factory=dict)
    stated_ranks: dict[int, None] = field(default_factory=dict)
    world_size: int | None = None
    nodes: int | None = None
    chosen: dict[tuple[str, str, str], None] = field(default_factory=dict)
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
        """Hosts named in NCCL's log lines."""
        return tuple(dict.fromkeys(process.host for process in self.processes.values()))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks named in NCCL's log lines, in ascending order."""
        return tuple(sorted({p.rank for p in self.processes.values() if p.rank is not None}))

    @property
    def came_together(self) -> bool:
        """True if at least one rank's communicator is complete, which means that all ranks have connected."""
        return any(process.milestone is Milestone.COMPLETE for process in self.processes.values())

    def of_host(self, host: str | None) -> list[LoggedProcess]:
        return [process for process in self.processes.values() if process.host == host]

    def process(self, prefix: Prefix) -> LoggedProcess | None:
        return self.processes.get((prefix.host, prefix.pid)) if prefix.host and prefix.pid else None

    def take(self, kind: str, match: re.Match[str], prefix: Prefix) -> None:
        if kind in _FLAGS:
            setattr(self, _FLAGS[kind], True)
        elif kind in _COUNTS:
            setattr(self, _COUNTS[kind], getattr(self, _COUNTS[kind]) + 1)
        elif kind in _REACHED:
            process = self._enter(prefix)
            if process is not None:
                process.milestone = max(process.milestone, _REACHED[kind])
                for name, value in match.groupdict().items():
                    setattr(process, name, value)
        elif kind not in _OF_SOURCES:
            getattr(self, f"_{kind}")(match, prefix)

    def merge(self, other: Facts) -> None:
        """Merge the facts of another part of the same logs."""
        self.nccl_versions += other.nccl_versions
        self.torch_versions += other.torch_versions
        for key, process in other.processes.items():
            if key in self.processes:
                self.processes[key].merge(process)
            else:
                self.processes[key] = process
        for name in ("rings", "trees"):
            setattr(self, name, getattr(other, name) | getattr(self, name))
        for name in ("chosen", "stated_ranks", "tasks"):
            setattr(self, name, getattr(self, name) | getattr(other, name))
        for name in (*_FLAGS.values(), "ifname"):
            setattr(self, name, getattr(self, name) or getattr(other, name))
        self.world_size = max(self.world_size or 0, other.world_size or 0) or None
        self.nodes = max(self.nodes or 0, other.nodes or 0) or None
        self.busbw = other.busbw if self.busbw is None else self.busbw
        self.summary_host = other.summary_host or self.summary_host
        self.summary_rank = self.summary_rank if other.summary_rank is None else other.summary_rank
        self.ras_failures += other.ras_failures
        self.rows += other.rows

    def _enter(self, prefix: Prefix) -> LoggedProcess | None:
        if not prefix.host or not prefix.pid or prefix.level is None:
            return None
        key = (prefix.host, prefix.pid)
        if key not in self.processes and len(self.processes) >= MAX_PROCESSES:
            return None
        process = self.processes.setdefault(key, LoggedProcess(*key))
        if process.rank is None and prefix.rank is not None and not prefix.rank_is_task:
            process.rank = prefix.rank
        return process

    def _reached(self, prefix: Prefix, milestone: Milestone) -> LoggedProcess | None:
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
        process = self._reached(prefix, Milestone.INTERFACE) or LoggedProcess("", "")
        matches = INTERFACE.findall(match.string[match.start() : match.end() + 400])
        process.interfaces = [*dict.fromkeys((*process.interfaces, *(Interface(*fields) for fields in matches)))]

    def _init(self, match: re.Match[str], prefix: Prefix) -> None:
        if number(match["size"]) == 1:
            return  # a communicator of one rank waits for no other
        done = match["end"] == "COMPLETE"
        process = self._reached(prefix, Milestone.COMPLETE if done else Milestone.INIT_START)
        self._note_rank(process, match)
        self.note_task(prefix, number(match["rank"]))

    def note_task(self, prefix: Prefix, rank: int | None) -> None:
        """Record the rank that is named in a line printed by an srun task."""
        if prefix.task is not None and rank is not None and len(self.tasks) < MAX_PROCESSES:
            self.tasks.setdefault((prefix.task, rank))

    @property
    def tasks_are_ranks(self) -> bool | None:
        """True if srun's task numbers equal the ranks, False if they differ, and None if unknown."""
        return all(task == rank for task, rank in self.tasks) if self.tasks else None

    def _rank(self, match: re.Match[str], prefix: Prefix) -> None:
        self._note_rank(self._enter(prefix), match)

    def _note_rank(self, process: LoggedProcess | None, match: re.Match[str]) -> None:
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

    def _chosen(self, match: re.Match[str], prefix: Prefix) -> None:
        topic, value = next(item for item in match.groupdict().items() if item[1])
        value = " ".join((value, *match.groups()[1:]))
        if len(self.chosen) < MAX_RANKS * 16:
            self.chosen.setdefault((topic, _GDR.get(value, value), prefix.host or ""))

    def _nodes(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.nodes = max(self.nodes or 0, number(match["nodes"]) or 0) or None

    def _ifname(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.ifname = self.ifname or match["value"]

    def _busbw(self, match: re.Match[str], _prefix: Prefix) -> None:
        self.busbw, self.ended_well = float(match["rate"]), True

    def _summary(self, match: re.Match[str], _prefix: Prefix) -> None:
        """Read a line of torchrun's failure summary, whose last entry is the root cause."""
        if match["host"]:
            self.summary_host = match["host"]
        elif match["rank"]:
            self.summary_rank = number(match["rank"])

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
        """Read a ``Trees`` line, in which a rank is listed between its children and its parent."""
        self._enter(prefix)
        own_match = OWN_IN_TREE.search(match["trees"])
        rank = number(own_match[1]) if own_match else None
        if rank is not None:
            self.trees.setdefault(rank, match["trees"].strip())


OWN_IN_TREE = re.compile(r"->(\d{1,7})->")
INTERFACE = re.compile(r"(?<![\w.-])(?:\[\d+\])?([A-Za-z][\w.-]*(?::\d+)?):([0-9a-fA-F.:]+(?:%[\w.-]+)?)<\d+>")


def facts_of(lines: Iterable[str], rules: Sequence[FactRule] = (*RULES, *CHANNEL_RULES)) -> Facts:
    """Return the facts that ``rules`` match in lines that NCCL prints with ``NCCL_DEBUG=INFO``."""
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
