"""Models of a report, with its hosts, diagnoses and measurements.

All models are immutable and can be converted to JSON and back. The JSON form of :class:`Report` is the document that
``-o json`` prints. New versions may add fields to this document but never change existing fields.
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
    """The interface that NCCL's bootstrap uses on a host, as reported by libnccl or computed by the model of NCCL."""

    name: str
    address: str
    nccl_version: str | None
    source: Literal["libnccl", "model"]


class RdmaAnswer(FrozenModel):
    """An RDMA port in NCCL's device list on a host."""

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
    """A host in the report.

    Attributes:
        network: the network of the address that NCCL chose on the host, such as "10.0.0.0/24".
        rdma: the host's RDMA ports in NCCL's order.
        seen: phrases about the host, keyed by topic, for example "GPUs" or "routes".
        spent: for each phase, the times at which the phase began and ended on the host, in seconds since the start of
            the run.
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
    """A row of the terminal output: a category, its outcome, and a phrase."""

    name: str
    outcome: PhaseOutcome
    text: str


Name = Annotated[str, Field(max_length=4096)]  # name of a host in a snapshot


class MachineLoad(FrozenModel):
    """The load on a machine.

    Attributes:
        queue: number of processes that were runnable or in an uninterruptible sleep, averaged over one minute
            (proc_loadavg(5)).
        cpus: number of CPUs that the processes share.
        lag_s: largest delay, in seconds, with which a thread of nccl-doctor woke up, or None if the delay was not
            measured.
    """

    queue: float = Field(ge=0, le=2**31)
    cpus: int = Field(ge=1, le=2**20)
    lag_s: float | None = Field(default=None, ge=0, le=1e12)

    @property
    def busy(self) -> bool:
        """True if the load is at least two processes per CPU, or if a thread woke up at least half a second late."""
        return self.queue >= 2 * self.cpus or (self.lag_s or 0.0) >= 0.5

    @property
    def words(self) -> str:
        """The load as a phrase, used as evidence when a host's answer was late."""
        late = f", threads up to {self.lag_s:.1f} s late" if (self.lag_s or 0.0) >= 0.1 else ""
        return f"this machine was busy meanwhile: load {self.queue:.1f} on {self.cpus} CPUs{late}"


class Load(FrozenModel):
    """The load on the controller and on the hosts.

    A high load might be the reason why hosts answer late.

    Attributes:
        controller: load on the machine on which nccl-doctor ran, measured while nccl-doctor connected to the hosts.
        hosts: load on each host that answered, measured at the start of the host's probe.
        second_try: hosts that answered only the second connection attempt.
    """

    controller: MachineLoad
    hosts: dict[Name, MachineLoad] = Field(default_factory=dict)
    second_try: tuple[Name, ...] = ()


DialOutcome = Literal[
    "connected", "refused", "timed-out", "no-route", "unreachable", "stranger", "intercepted", "reset",
    "no-source-address", "failed",
]  # fmt: skip
DialSeconds = Annotated[float, Field(ge=0, le=3600)]
"""Duration of a connection attempt.

The first attempt to connect has a time limit of a few seconds, and the second attempt has twice this limit.
"""


class FailedDial(Observed):
    """A TCP connection attempt from ``src`` to ``dst`` that did not reach nccl-doctor's listener.

    ``error`` is the name of an errno value, "SILENT" if the connection was accepted but no data arrived, an error
    message (for example, if the lookup of a host name failed), or None. ``seconds`` (the duration of the attempt) and
    ``source_port`` (the local port) are None if they were not recorded.
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
    """The tested pairs of hosts in a large cluster: the master with each host, ring neighbours, and random pairs.

    Attributes:
        random_peers: number of random peers to which each host connected.
        distances: distances in the ring that all hosts form in the order of their ranks. Each host connected to the
            hosts that follow it at these distances.
        dialled_by_all: hosts to which all other hosts connected, because these hosts might have caused connection
            failures.
    """

    random_peers: int
    distances: tuple[int, ...] = ()
    dialled_by_all: tuple[str, ...] = ()


class MeshReport(FrozenModel):
    """The results of connection tests between hosts.

    ``pairs`` is the number of ordered pairs of hosts, ``tested`` is the number of tested pairs, and ``ports`` contains
    the tested ports of each host. ``sample`` describes the sample of pairs that was to be tested, or is None if all
    pairs were to be tested. If ``sample`` is None and ``tested`` is less than ``pairs``, some pairs could not be
    tested.
    """

    hosts: int
    pairs: int
    tested: int
    ports: dict[str, tuple[int, ...]]
    failed: tuple[FailedDial, ...] = ()
    sample: SampleReport | None = None


class RateReport(FrozenModel):
    """TCP throughput from ``src`` through its ``interface`` to ``dst``.

    Attributes:
        gbps: rate at which the receiving kernel acknowledged data, in Gb/s (10⁹ bits per second).
        rtt_us: round-trip time during the measurement, in µs.
        of_link: the rate as a fraction of the slower link's speed, or None if the drivers do not report link speeds.
        streams: number of simultaneous TCP connections.
        limited: a phrase that describes how one of the hosts limited the rate, or None if the network limited the rate.
        alone: True if a low rate was measured again while no other host was sending.
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
    """Return a rate as text in Gb/s, or in Mb/s or kb/s if the rate is small."""
    for unit, scale in (("Gb/s", 1.0), ("Mb/s", 1e3)):
        if gbps * scale >= 1:
            return f"{gbps * scale:.1f} {unit}" if gbps * scale < 100 else f"{gbps * scale:.0f} {unit}"
    return f"{gbps * 1e6:.0f} kb/s"


def gbps_span(values: Iterable[float]) -> str:
    """Return a range of rates such as ``9.3 to 9.4 Gb/s``, or a single rate if all rates look the same when printed."""
    rates = sorted(values)
    low, high = gbps_words(rates[0]), gbps_words(rates[-1])
    number, _, unit = low.partition(" ")
    return low if low == high else f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


Reported = Literal["started", "torch", "store", "group", "allreduce", "sizes", "done"]
"""Stages that a rank of the all-reduce reports, in this order (probe/smoke/worker.py)."""
Stage = Literal["none", Reported]  # the last stage that a rank reported; "none" before the first
STAGES: tuple[Stage, ...] = get_args(Stage)


ErrorKind = Literal["wrong-sum", "no-nccl"]


class RankReport(Observed):
    """The progress of a rank in the all-reduce.

    Attributes:
        stage: the last stage that the rank reached, or "none" before the first stage.
        error_kind: "wrong-sum" if the all-reduce computed a wrong sum, "no-nccl" if torch was built without NCCL, or
            None in all other cases.
        pid: the rank's PID on the host. ``torch`` and ``nccl`` are the versions that the rank loaded.
        times: seconds until the rank reached each stage, counted from the moment at which the host was told to start
            its ranks.
        exit_code: the exit status (exit(3)). ``signal`` is the number of the signal that killed the rank.
        state: process state of a rank that had to be killed (proc(5)), such as "D nfs_wait" if the rank was waiting in
            the kernel.
        stack: Python frames of the main thread of a rank that had to be killed, innermost first.
        own_s: seconds that the rank spent outside the timed all-reduces. Other ranks might have waited for this rank
            during this time.
        busy: average number of CPUs that the rank's threads used or waited for while the all-reduces were timed.
        interfaces: interfaces of the rank as NCCL prints them, such as "eth0:10.0.0.1". ``network`` is "IB", "Socket"
            or the name of a plugin.
        plugin: network plugin that NCCL loaded, such as "Libfabric (v8)". NCCL uses the plugin only if the plugin finds
            a device.
        transports: number of channels by transport, such as "P2P/CUMEM", "SHM/direct/direct" or "NET/IB/0/GDRDMA".
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
    """Results for one message size: the median time, and the bandwidths as defined by nccl-tests.

    The bandwidths are in GB/s (10⁹ bytes per second).
    """

    bytes: Count
    seconds: Seconds
    algbw: Rate
    busbw: Rate
    dtype: str = "float32"


class TrialReport(Observed):
    """A repetition of the all-reduce in a group of hosts."""

    hosts: tuple[str, ...]
    ok: bool


class IsolationReport(Observed):
    """The cause of a failed all-reduce, found by repeating the all-reduce in groups of hosts.

    Attributes:
        culprit: "host" if the all-reduce fails between each of ``hosts`` and several other hosts, "pair" if the
            all-reduce fails between the two ``hosts`` but succeeds between each of them and other hosts, or None if no
            culprit was found. If ``culprit`` is None, ``end`` states why the search ended.
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
"""RDMA port counters, each with the kind of problem that an increase indicates and a phrase for the counted events."""
PortName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}:[0-9]{1,3}$")]
CounterName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
Growth = Annotated[dict[PortName, Annotated[dict[CounterName, Count], Field(max_length=64)]], Field(max_length=256)]
"""Increases in RDMA port counters during the all-reduce, keyed by port (such as "mlx5_0:1").

Counters that did not change are omitted.
"""


def grown_words(grown: dict[str, dict[str, dict[str, int]]]) -> tuple[str, ...]:
    """Return a line for each port, such as "node1: mlx5_0:1: 12 packets received out of sequence".

    Each line lists the counters in the order of :data:`COUNTERS`.
    """
    return tuple(
        f"{host}: {port}: {', '.join(f'{rise[name]} {words}' for name, (_, words) in COUNTERS.items() if name in rise)}"
        for host, ports in grown.items()
        for port, rise in ports.items()
        if rise
    )


class LinkShare(FrozenModel):
    """The slowest link in an all-reduce over several machines.

    Attributes:
        name: the link's interfaces or RDMA devices on ``host``, such as "eno1", or "what --rate measured" if the speed
            of a link is unknown and ``gb_per_s`` is the measured TCP throughput.
        gb_per_s: maximum rate in each direction, in GB/s (10⁹ bytes per second).
        links: the links whose rates add up to ``gb_per_s``, such as "one 100 Gb/s link". If PCIe slots limit
            ``gb_per_s`` to less, the text ends with ", less by PCIe".
        share: highest measured bus bandwidth as a fraction of ``gb_per_s``. The fraction can exceed 1, because some
            algorithms send less data over the link than a ring does.
    """

    host: str
    name: str
    gb_per_s: float
    share: float
    links: str = ""


class AllReduceReport(FrozenModel):
    """The result of the all-reduce.

    Attributes:
        reason: why this backend was used.
        diagnostics: result of NCCL's own diagnostics (NCCL 2.31 and later) as a phrase, or None if the diagnostics did
            not run.
        outcome: "failed" if a rank failed or died, "timeout" if the deadline passed, or "wrong-result" if a sum was
            wrong.
        sizes: results for each message size. The list is empty if there is only one rank.
        link: the slowest link, or None if all ranks ran on one machine or the link's speed is unknown.
        rings: ranks in the order of each channel's ring. ``trees`` contains each rank's trees as NCCL prints them.
        rdma_grown: increases in the counters of RDMA ports during the all-reduce, keyed by host and port.
        isolation: result of repeating the all-reduce in groups of hosts, or None if there is no result.
    """

    backend: Literal["nccl", "gloo"]
    reason: str = ""
    world_size: int
    ok: bool
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
    """The JSON document of each command that reports diagnoses."""

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
        """Phrases for the parts of ``nccl-doctor check`` that were skipped on request."""
        skipped = [check for check in self.checks if check.outcome is Outcome.SKIP and self.command == "check"]
        reasons = {check.reason for check in skipped}
        phases = {"--no-smoke": "the all-reduce", "--mesh none": "the ports between hosts"}
        phrases = [f"{phase} ({by})" for by, phase in phases.items() if f"{NOT_ASKED} ({by})" in reasons]
        names = [check.name for check in skipped if check.reason == NOT_SELECTED]
        return (*phrases, *(names if len(names) <= MOST_NAMES else [f"{len(names)} checks that were not selected"]))

    def of_category(self, category: str) -> tuple[Diagnosis, ...]:
        codes = {check.code for check in self.checks if check.category == category}
        return tuple(diagnosis for diagnosis in self.diagnoses if diagnosis.code in codes)
