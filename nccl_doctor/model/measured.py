"""What the port mesh and the all-reduce came to, as reports tell it.

Apart from the facts of a snapshot, whose types are as strict as hosts are untrusted: what is here is published.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from nccl_doctor.model.frozen import FrozenModel

Name = Annotated[str, Field(max_length=4096)]
"""A host's, in a snapshot."""


class MachineLoad(FrozenModel):
    """How busy a machine was.

    Attributes:
        queue: runnable processes, the one-minute average of proc_loadavg(5).
        cpus: that they share.
        lag_s: how late a thread of ours woke up at most; None where nobody measured it.
    """

    queue: float = Field(ge=0, le=2**31)
    cpus: int = Field(ge=1, le=2**20)
    lag_s: float | None = Field(default=None, ge=0, le=1e12)

    @property
    def busy(self) -> bool:
        """Two programs want each CPU, or a thread waited half a second for one."""
        return self.queue >= 2 * self.cpus or (self.lag_s or 0.0) >= 0.5

    @property
    def words(self) -> str:
        """The load as a phrase, for evidence beside a host that was late."""
        late = "" if self.lag_s is None else f", threads up to {self.lag_s:.1f} s late"
        return f"this machine was busy meanwhile: load {self.queue:.1f} on {self.cpus} CPUs{late}"


class Load(FrozenModel):
    """How busy the measuring machines were: a late answer may be theirs.

    Attributes:
        controller: the machine that nccl-doctor ran on, while it connected.
        hosts: those that answered, when their probe began.
        second_try: the hosts that answered only when they were asked again.
    """

    controller: MachineLoad
    hosts: dict[Name, MachineLoad] = Field(default_factory=dict)
    second_try: tuple[Name, ...] = ()


class FailedDial(FrozenModel):
    """A TCP connection from ``src`` to ``dst`` that did not reach our listener; ``error`` is an errno's name.

    ``seconds`` is how long it took; None where nobody noted it.
    """

    src: str
    dst: str
    address: str
    port: int
    outcome: str
    error: str | None = None
    seconds: float | None = None


class SampleReport(FrozenModel):
    """Which pairs a large mesh dialled: the master and each host, ring neighbours both ways, and others at random.

    Attributes:
        random_peers: how many of them each host dialled besides.
        distances: how many ranks behind it, in the ring of all hosts, stand those that each host dialled.
        dialled_by_all: the hosts with which a dial failed, which all others dialled then.
    """

    random_peers: int
    distances: tuple[int, ...] = ()
    dialled_by_all: tuple[str, ...] = ()


class MeshReport(FrozenModel):
    """The port mesh: of ``pairs`` ordered pairs of hosts ``tested`` were dialled, at ``ports`` of each host.

    ``sample`` says which, where that is not all.
    """

    hosts: int
    pairs: int
    tested: int
    ports: dict[str, tuple[int, ...]]
    failed: tuple[FailedDial, ...] = ()
    sample: SampleReport | None = None


Reported = Literal["started", "torch", "store", "group", "allreduce", "sizes", "done"]
"""What a rank of the all-reduce reports, in the order in which it gets there (probe/smoke/worker.py)."""
Stage = Literal["none", Reported]
"""The last that a rank reported; "none" before the first."""
STAGES: tuple[Stage, ...] = get_args(Stage)


class RankReport(FrozenModel):
    """How far one rank came.

    Attributes:
        stage: the last that it reached, "none" before the first, in the order of ``times``.
        pid: on its host; the interpreter, torch and NCCL are those that it really loaded.
        times: seconds from its start to each stage.
        exit_code: of exit(3); ``signal``, the number, where it was killed.
        state: of a rank that had to be ended: the letter of proc(5), "D nfs_wait" for one in the kernel.
        stack: of a rank that had to be ended: its main thread's Python frames, innermost first.
        own_s: seconds it took outside of the timed all-reduces, while others may have waited for it.
        interfaces: "eth0:10.0.0.1", as NCCL prints them; ``network``: "IB", "Socket" or a plugin's name.
        plugin: the network plugin that NCCL loaded, "Libfabric (v8)"; one that finds no device is not used.
        transports: channels by the way they go: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", …
    """

    rank: int
    host: str
    local_rank: int
    stage: str
    ok: bool
    error: str | None = None
    pid: int | None = None
    torch: str | None = None
    nccl: str | None = None
    times: dict[str, float] = Field(default_factory=dict)
    exit_code: int | None = None
    signal: int | None = None
    state: str | None = None
    stack: tuple[str, ...] = ()
    own_s: float | None = None
    interfaces: tuple[str, ...] = ()
    network: str | None = None
    plugin: str | None = None
    transports: dict[str, int] = Field(default_factory=dict)


class SizeReport(FrozenModel):
    """One message size: median seconds, and GB/s (10⁹ bytes) as nccl-tests defines them."""

    bytes: int
    seconds: float
    algbw: float
    busbw: float
    dtype: str = "float32"


class TrialReport(FrozenModel):
    """The all-reduce over some of the hosts alone."""

    hosts: tuple[str, ...]
    ok: bool


class IsolationReport(FrozenModel):
    """Who breaks the all-reduce, found by repeating it over groups of hosts.

    Attributes:
        culprit: "host": each of ``hosts`` fails with hosts that work with others; "pair": these two fail together
            and work with others. None where there was no verdict: ``end`` says why.
    """

    culprit: Literal["host", "pair"] | None
    hosts: tuple[str, ...] = ()
    trials: tuple[TrialReport, ...] = ()
    end: str | None = None


class LinkShare(FrozenModel):
    """The slowest link under an all-reduce over several machines.

    Attributes:
        name: its interfaces or RDMA devices on ``host``, "eno1".
        gb_per_s: 10⁹ bytes a second that it could give, each way.
        share: the part of that which was reached, 0 to 1.
    """

    host: str
    name: str
    gb_per_s: float
    share: float


class AllReduceReport(FrozenModel):
    """The all-reduce; its words mean what they mean in :class:`~nccl_doctor.snapshot.Smoke`."""

    backend: Literal["nccl", "gloo"]
    reason: str = ""
    world_size: int
    ok: bool
    outcome: Literal["ok", "failed", "timeout", "wrong-result"]
    ranks: tuple[RankReport, ...]
    sizes: tuple[SizeReport, ...] = ()
    link: LinkShare | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    trees: dict[int, str] = Field(default_factory=dict)
    isolation: IsolationReport | None = None
