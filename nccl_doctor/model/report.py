"""Models of an answer: a report with its rows, diagnoses and measurements.

All models are immutable and can be converted to JSON and back. The JSON of :class:`Report` is the document that ``-o
json`` prints; fields may be added but never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import Field

from nccl_doctor.model.base import (
    NOT_ASKED,
    NOT_SELECTED,
    Clipped,
    Count,
    Document,
    FrozenModel,
    HostAddress,
    Observed,
    Pid,
    Port,
    ProcessState,
    Rate,
    Seconds,
    Version,
)
from nccl_doctor.model.finding import CheckResult, Diagnosis, LogEvent, Outcome


class NcclInterface(FrozenModel):
    """The interface that NCCL's bootstrap uses on a host, and the source of that answer."""

    name: str
    address: str
    nccl_version: str | None
    source: Literal["libnccl", "model"]


class RdmaAnswer(FrozenModel):
    """A port in NCCL's list of a host's RDMA devices."""

    device: str
    port: int
    netdev: str | None  # None on InfiniBand
    link_layer: str | None
    rate_gbps: float | None
    gid_index: int
    gid: str | None  # the address in it, if it holds one; None if the entry is empty
    why: str  # reason for that index
    network: str | None = None  # subnet of that address
    place: int = 0  # index of the device that channels use; its ports are fused if several have the same index
    apart: tuple[str, ...] = ()  # hosts whose device at the same index can't communicate with it
    trouble: str | None = None  # the same as a phrase: "no way to node1's"


class HostSummary(FrozenModel):
    """One host of the report.

    Attributes:
        network: the network of the address that NCCL chose there, "10.0.0.0/24".
        rdma: its RDMA ports in NCCL's order.
        seen: phrases for its facts: versions, GPUs, limits, routes.
        spent: by phase, the seconds into the run at which its work began and ended.
    """

    name: str
    address: str
    node_rank: int
    reached: bool
    nccl_interface: NcclInterface | None = None
    network: str | None = None
    rdma: tuple[RdmaAnswer, ...] = ()
    seen: dict[str, str] = Field(default_factory=dict)
    spent: dict[str, tuple[float, float]] = Field(default_factory=dict)


PhaseOutcome = Literal["ok", "warning", "error", "unknown", "n/a", "skip"]


class Phase(FrozenModel):
    """A row of the screen: a category, its outcome, and a phrase."""

    name: str
    outcome: PhaseOutcome
    text: str


Name = Annotated[str, Field(max_length=4096)]  # name of a host in a snapshot


class MachineLoad(FrozenModel):
    """How busy a machine was.

    Attributes:
        queue: number of runnable processes, the one-minute average of proc_loadavg(5).
        cpus: number of CPUs that they share.
        lag_s: greatest delay with which a thread of ours woke up; None if not measured.
    """

    queue: float = Field(ge=0, le=2**31)
    cpus: int = Field(ge=1, le=2**20)
    lag_s: float | None = Field(default=None, ge=0, le=1e12)

    @property
    def busy(self) -> bool:
        """True if there are two waiting programs per CPU, or a thread waited half a second for a CPU."""
        return self.queue >= 2 * self.cpus or (self.lag_s or 0.0) >= 0.5

    @property
    def words(self) -> str:
        """The load as a phrase, for evidence about a host that was late."""
        late = f", threads up to {self.lag_s:.1f} s late" if (self.lag_s or 0.0) >= 0.1 else ""
        return f"this machine was busy meanwhile: load {self.queue:.1f} on {self.cpus} CPUs{late}"


class Load(FrozenModel):
    """Load of the measuring machines, which may be why an answer is late.

    Attributes:
        controller: the machine on which nccl-doctor ran, while it connected.
        hosts: the hosts that answered, at the start of their probes.
        second_try: hosts that answered only at the second try.
    """

    controller: MachineLoad
    hosts: dict[Name, MachineLoad] = Field(default_factory=dict)
    second_try: tuple[Name, ...] = ()


DialOutcome = Literal[
    "connected", "refused", "timed-out", "no-route", "unreachable", "stranger", "intercepted", "reset",
    "no-source-address", "failed",
]  # fmt: skip
DialSeconds = Annotated[float, Field(ge=0, le=3600)]
"""Duration of a dial; its limit is a few seconds, and twice that in a second attempt."""


class FailedDial(Observed):
    """A TCP connection from ``src`` to ``dst`` that did not reach our listener; ``error`` is an errno's name.

    ``seconds`` is its duration, and ``source_port`` that of the dialling socket; None if not recorded.
    """

    src: str
    dst: str
    address: HostAddress
    port: Port
    outcome: DialOutcome
    error: Clipped | None = None
    seconds: DialSeconds | None = None
    source_port: Port | None = None


class SampleReport(FrozenModel):
    """The dialled pairs of a large mesh: the master and each host, ring neighbours both ways, and random others.

    Attributes:
        random_peers: number of random peers that each host dialled.
        distances: distances, in the ring of all hosts, to the hosts that each host dialled.
        dialled_by_all: hosts with a failed dial, which all others then dialled.
    """

    random_peers: int
    distances: tuple[int, ...] = ()
    dialled_by_all: tuple[str, ...] = ()


class MeshReport(FrozenModel):
    """The port mesh: of ``pairs`` ordered pairs of hosts, ``tested`` were dialled, at ``ports`` of each host.

    ``sample`` describes the dialled pairs if not all were dialled.
    """

    hosts: int
    pairs: int
    tested: int
    ports: dict[str, tuple[int, ...]]
    failed: tuple[FailedDial, ...] = ()
    sample: SampleReport | None = None


class RateReport(FrozenModel):
    """The rate of TCP from ``src`` through its ``interface`` to ``dst``.

    Attributes:
        gbps: rate acknowledged by the other kernel, in Gb/s (10⁹ bits per second).
        rtt_us: round-trip time under this load, in µs.
        of_link: share of the slower link's speed, if drivers report it.
        streams: number of simultaneous TCP connections.
        limited: a phrase for the part of the machine that was the limit; None if it was the network.
        alone: whether it was measured again with nobody else sending, because it was slow at first.
    """

    src: str
    dst: str
    interface: str
    gbps: float
    rtt_us: int
    retransmits: int
    of_link: float | None = None
    streams: int = 1
    limited: str | None = None
    alone: bool = False


def gbps_words(gbps: float) -> str:
    """Return a rate in Gb/s, or in Mb/s or kb/s if it is small."""
    for unit, scale in (("Gb/s", 1.0), ("Mb/s", 1e3)):
        if gbps * scale >= 1:
            return f"{gbps * scale:.1f} {unit}" if gbps * scale < 100 else f"{gbps * scale:.0f} {unit}"
    return f"{gbps * 1e6:.0f} kb/s"


def gbps_span(values: Iterable[float]) -> str:
    """Return ``9.3 to 9.4 Gb/s``, or one number if they are the same."""
    rates = sorted(values)
    low, high = gbps_words(rates[0]), gbps_words(rates[-1])
    number, _, unit = low.partition(" ")
    return low if low == high else f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


Reported = Literal["started", "torch", "store", "group", "allreduce", "sizes", "done"]
"""Stages that a rank of the all-reduce reports, in order (probe/smoke/worker.py)."""
Stage = Literal["none", Reported]  # the last stage that a rank reported; "none" before the first
STAGES: tuple[Stage, ...] = get_args(Stage)


ErrorKind = Literal["wrong-sum", "no-nccl"]


class RankReport(Observed):
    """The progress of a rank.

    Attributes:
        stage: the last stage that it reached, "none" before the first, in the order of ``times``.
        error_kind: set for errors of our own: a wrong sum, or a torch without NCCL.
        pid: its PID on the host; interpreter, torch and NCCL are those that it actually loaded.
        times: seconds from its start to each stage.
        exit_code: that of exit(3); ``signal`` is the number of the signal that killed it.
        state: for a rank that had to be ended: the state of proc(5), "D nfs_wait" if it was in the kernel.
        stack: for a rank that had to be ended: its main thread's Python frames, innermost first.
        own_s: seconds outside the timed all-reduces, during which others may have waited for it.
        busy: CPUs that its threads used or waited for on average while the sizes were timed.
        interfaces: "eth0:10.0.0.1", as NCCL prints them; ``network`` is "IB", "Socket" or a plugin's name.
        plugin: the network plugin that NCCL loaded, "Libfabric (v8)", which is not used if it finds no device.
        transports: number of channels by transport: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", …
    """

    rank: Count
    host: str
    local_rank: Count
    stage: Stage
    ok: bool
    error: Clipped | None = None
    error_kind: ErrorKind | None = None
    pid: Pid | None = None
    torch: Version | None = None
    nccl: Version | None = None
    times: dict[str, Seconds] = Field(default_factory=dict)
    exit_code: Count | None = None
    signal: Count | None = None
    state: ProcessState | None = None
    stack: tuple[str, ...] = ()
    own_s: Seconds | None = None
    busy: Seconds | None = None
    interfaces: tuple[str, ...] = ()
    network: str | None = None
    plugin: str | None = None
    transports: dict[str, Count] = Field(default_factory=dict)


class SizeReport(Observed):
    """Results for a message size: median seconds, and GB/s (10⁹ bytes) as nccl-tests defines them."""

    bytes: Count
    seconds: Seconds
    algbw: Rate
    busbw: Rate
    dtype: str = "float32"


class TrialReport(Observed):
    """The all-reduce over a group of hosts."""

    hosts: tuple[str, ...]
    ok: bool


class IsolationReport(Observed):
    """The culprit of a failed all-reduce, found by repeating it in groups of hosts.

    Attributes:
        culprit: "host": each of ``hosts`` fails with hosts that work with others; "pair": these two fail together but
            work with others; None without a verdict, for the reason in ``end``.
    """

    culprit: Literal["host", "pair"] | None
    hosts: tuple[str, ...] = ()
    trials: tuple[TrialReport, ...] = ()
    end: str | None = None


COUNTERS: dict[str, tuple[Literal["link", "loss", "receiver", "congestion"], str]] = {
    "link_downed": ("link", "link failures"),
    "link_error_recovery": ("link", "link recoveries"),
    "symbol_error": ("link", "symbol errors"),
    "port_rcv_errors": ("link", "packets received with errors"),
    "rx_icrc_encapsulated": ("link", "packets with a wrong checksum"),
    "out_of_sequence": ("loss", "packets received out of sequence"),
    "packet_seq_err": ("loss", "packets that the other side missed"),
    "local_ack_timeout_err": ("loss", "packets that nobody acknowledged in time"),
    "roce_adp_retrans": ("loss", "adaptive retransmissions"),
    "req_transport_retries_exceeded": ("loss", "requests given up after all retries"),
    "port_xmit_discards": ("loss", "packets discarded instead of sent"),
    "rnr_nak_retry_err": ("receiver", "refusals by a receiver that was not ready"),
    "out_of_buffer": ("receiver", "packets without a buffer to receive them"),
    "req_remote_access_errors": ("receiver", "refused accesses to the other side's memory"),
    "np_cnp_sent": ("congestion", "congestion notices sent"),
    "np_ecn_marked_roce_packets": ("congestion", "packets marked for congestion"),
    "rp_cnp_handled": ("congestion", "congestion notices obeyed"),
    "port_xmit_wait": ("congestion", "ticks with data to send and no credit"),
}
"""Counters of an RDMA port: the meaning of their growth, and what they count."""
PortName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}:[0-9]{1,3}$")]
CounterName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
Growth = Annotated[dict[PortName, Annotated[dict[CounterName, Count], Field(max_length=64)]], Field(max_length=256)]
"""Growth of counters during the all-reduce, by port ("mlx5_0:1"), without those that did not grow."""


def grown_words(grown: dict[str, dict[str, dict[str, int]]]) -> tuple[str, ...]:
    """Return lines such as "node1: mlx5_0:1: 12 packets received out of sequence", the most telling counters first."""
    return tuple(
        f"{host}: {port}: {', '.join(f'{its[name]} {words}' for name, (_, words) in COUNTERS.items() if name in its)}"
        for host, ports in grown.items()
        for port, its in ports.items()
        if its
    )


class LinkShare(FrozenModel):
    """The slowest link in an all-reduce over several machines.

    Attributes:
        name: its interfaces or RDMA devices on ``host``, "eno1".
        gb_per_s: its possible rate in GB/s (10⁹ bytes per second) in each direction.
        links: the links that add up to that, "one 100 Gb/s link".
        share: the share of ``gb_per_s`` that was reached, 0 to 1.
    """

    host: str
    name: str
    gb_per_s: float
    share: float
    links: str = ""


class AllReduceReport(FrozenModel):
    """The all-reduce; fields have the same meaning as those in :class:`~nccl_doctor.snapshot.Smoke`."""

    backend: Literal["nccl", "gloo"]
    reason: str = ""
    world_size: int
    ok: bool
    # result of NCCL's own diagnostics (2.31 and later), as a phrase; None if they did not run
    diagnostics: str | None = None
    outcome: Literal["ok", "failed", "timeout", "wrong-result"]
    ranks: tuple[RankReport, ...]
    sizes: tuple[SizeReport, ...] = ()
    link: LinkShare | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    trees: dict[int, str] = Field(default_factory=dict)
    rdma_grown: dict[str, dict[str, dict[str, int]]] = Field(default_factory=dict)
    isolation: IsolationReport | None = None


MOST_NAMES = 3


class Report(Document):
    """The document that all judging commands print."""

    status: Literal["ok", "warning", "error"]
    complete: bool
    title: str = ""
    hosts: tuple[HostSummary, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    phases: tuple[Phase, ...] = ()
    summary: tuple[Phase, ...] = ()
    mesh: MeshReport | None = None
    rates: tuple[RateReport, ...] | None = None
    smoke: AllReduceReport | None = None
    load: Load | None = None
    events: tuple[LogEvent, ...] = ()
    timings: dict[str, float] = Field(default_factory=dict)
    next_step: str | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Phrases for parts that were left out on request and that other commands judge."""
        skipped = [check for check in self.checks if check.outcome is Outcome.SKIP and self.command == "check"]
        reasons = {check.reason for check in skipped}
        phases = {"--no-smoke": "the all-reduce", "--mesh none": "the ports between hosts"}
        found = [f"{phase} ({by})" for by, phase in phases.items() if f"{NOT_ASKED} ({by})" in reasons]
        names = [check.name for check in skipped if check.reason == NOT_SELECTED]
        return (*found, *(names if len(names) <= MOST_NAMES else [f"{len(names)} checks that were not selected"]))

    def of_category(self, category: str) -> tuple[Diagnosis, ...]:
        codes = {check.code for check in self.checks if check.category == category}
        return tuple(diagnosis for diagnosis in self.diagnoses if diagnosis.code in codes)
