"""Defines effects of faults on an all-reduce, for use by several checks.

:data:`~nccl_doctor.model.effect.KINDS` lists the kinds of effects. If an effect is an exception, its kind is the name
of the diagnosis that ``nccl-doctor logs`` derives from the exception's message.
"""

from nccl_doctor.model.effect import DIALS, GIVING_UP, LOST, WAITS, Effect, Reach

_DIALS = (*DIALS, *GIVING_UP)

CONNECTIONS = Effect(
    (*WAITS, *_DIALS, LOST, "peer-died", "hostname-loopback", "wrong-interface", "nccl-unknown-error"),
    Reach.MEETS,
    "ranks that can't connect wait for each other, give up, or lose their peers",
)
SILENCE = Effect(
    (*WAITS, "connection-timed-out", *GIVING_UP, LOST, "peer-died", "nccl-unknown-error"),
    Reach.MEETS,
    "packets are dropped without a response, so the sender keeps waiting",
)
NCCL_CONNECTIONS = Effect(
    ("hang", *_DIALS, LOST, "peer-died", "wrong-interface", "nccl-unknown-error", "plugin-fault", "ib-fault"),
    Reach.MEETS,
    "NCCL's sockets, unlike torch's store and gloo, use the address of NCCL's interface (NCCL_SOCKET_IFNAME)",
    ("nccl",),
)
MASTER = Effect(
    ("no-store", "no-group", *_DIALS, "hostname-unresolvable", "port-in-use", "world-size-mismatch"),
    Reach.ALL,
    "every rank connects to the master's store before the rank joins the process group (torch, TCPStore)",
)
NAMES = Effect(
    (
        *("no-store", "no-group", *_DIALS, LOST, "peer-died"),
        *("hostname-loopback", "hostname-mismatch", "hostname-unresolvable"),
    ),
    Reach.MEETS,
    "gloo connects to the address to which a host's own name resolves, and every rank connects to the master by name",
)
RDMA = Effect(
    ("hang", "ib-fault", "gdr-p2p-fault", "nccl-unknown-error", "collective-timeout", "peer-died", LOST),
    Reach.MEETS,
    "ibv_modify_qp can't set up an RDMA queue pair, or sent packets are not acknowledged (completion with error 12)",
    ("nccl",),
)
PINNING = Effect(
    ("memlock-low", "ib-fault", "nccl-unknown-error"),
    Reach.OWN,
    "ibv_reg_mr and ibv_create_cq fail with ENOMEM if the limit on locked memory is reached",
    ("nccl",),
)
SHARED_MEMORY = Effect(
    ("SIGBUS", "shm-exhausted", "shm-attach-failed", "nccl-unknown-error"),
    Reach.OWN,
    "the ranks of one host share NCCL's buffers in /dev/shm, and a write to a full /dev/shm raises SIGBUS",
    ("nccl",),
)
FILES = Effect(
    ("nofile-low", "plugin-fault", "shm-attach-failed", "nccl-unknown-error", "hostname-unresolvable"),
    Reach.OWN,
    "open(2), socket(2) and accept(2) fail with EMFILE if a process has reached its limit on open files",
)
SLOW = Effect(("slow",), Reach.MEETS, "a ring all-reduce is only as fast as its slowest link")
SOCKETS = Effect(
    ("transport-fallback",),
    Reach.OWN,
    "a rank that can't use RDMA uses TCP sockets, which can't connect to other ranks' RDMA devices",
    ("nccl",),
)
SLOW_SOCKETS = Effect(
    ("slow",),
    Reach.MEETS,
    "TCP sockets are slower than RDMA, and an all-reduce is only as fast as its slowest link",
    ("nccl",),
)
CUDA = Effect(
    ("cuda-error", "cuda-driver-mismatch", "gpu-count-low", "local-rank-invalid", "nccl-unknown-error"),
    Reach.OWN,
    "CUDA fails to initialize or finds fewer GPUs than there are ranks",
    ("nccl",),
)
SETTING = Effect(
    (
        *WAITS,
        "nccl-unknown-error",
        "collective-timeout",
        "collective-mismatch",
        "plugin-fault",
        "ib-fault",
        "wrong-sum",
    ),
    Reach.MEETS,
    "hosts whose NCCL is configured differently can't agree on an algorithm, network or buffer size",
    ("nccl",),
)
VERSIONS = Effect(
    (
        "version-mismatch",
        "collective-mismatch",
        "collective-timeout",
        "nccl-unknown-error",
        "no-group",
        "hang",
        "wrong-sum",
    ),
    Reach.MEETS,
    "different versions of NCCL or torch can use incompatible protocols (NCCL's bootstrap, torch's store)",
)
STARTING = Effect(
    ("torch-missing", "not-started", "version-mismatch", "exit"),
    Reach.OWN,
    "the ranks import torch before anything else",
)
