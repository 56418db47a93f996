"""The memlock limit of processes started over SSH is too low for RDMA.

What it means: NCCL's InfiniBand transport fails with "Call to ibv_reg_mr failed … Cannot allocate memory" or
"ibv_create_qp failed". Every buffer that a network adapter accesses must be locked in memory.

How we know: the check reads the RLIMIT_MEMLOCK limit of a command that is started over SSH. Only hosts with an active
RDMA port that NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET allow are checked. The kernel counts all registered buffers of
a process towards the limit, and NCCL alone registers at least 64 MiB per communicator by default (at least 4 MiB per
channel and direction). The limit does not apply to a process with the CAP_IPC_LOCK capability. Root has CAP_IPC_LOCK
outside containers, but in a container only if the capability was granted. Your own terminal might show a different
limit, because launchers start the job in non-interactive sessions.

Fix: write `* - memlock unlimited` to a .conf file in /etc/security/limits.d, and log in again. For Docker, use
`--ulimit memlock=-1`. For systemd units such as Slurm's slurmd, set `LimitMEMLOCK=infinity`.
"""

from nccl_doctor.checks.effects import PINNING
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import Grade, hint, root
from nccl_doctor.logs.signs import Case, LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.engine import command_way
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.rdma_pairs import RdmaSide
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold, grouped

MIB = 1 << 20
FATAL = 64 * MIB
"""Minimum number of bytes that a communicator registers by default, with 4 MiB per channel and direction."""
ENOUGH = 1024 * MIB


@check(
    "NCD604",
    phrase="memlock limit is low",
    severity=Severity.WARNING,
    needs=("limits", "rdma"),
    explains=(PINNING,),
    in_logs=("ib-fault", "out-of-memory", "plugin-fault"),
    row="limits",
)
def memlock_low(view: View) -> Findings:
    sides = view.nccl.rdma.sides
    low = (
        (limit, host.name) for host, facts in view.facts if (limit := too_low(facts, sides.get(host.name))) is not None
    )
    for limit, hosts in grouped(low).items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"A process on {fold(hosts)} can lock only {limit // MIB} MiB of memory, which is too little for "
            "RDMA buffers.",
            evidence=(f"soft limit {limit} bytes, as a command {command_way(view.snapshot.cluster.nodes[0])} has it",),
            facts={"memlock_soft": limit},
            severity=Severity.ERROR if limit < FATAL else None,
            fix=Fix(
                summary="Write * - memlock unlimited to a .conf file in /etc/security/limits.d and log in again "
                "(Docker: --ulimit memlock=-1; Slurm: LimitMEMLOCK=infinity for slurmd).",
                needs_root=True,
            ),
        )


def too_low(facts: HostFacts, side: RdmaSide | None) -> int | None:
    """Return the memlock limit in bytes if the limit is too low for the RDMA ports in use, otherwise None."""
    limit, exempt = known(facts.limits).memlock_soft, known(facts.limits).ipc_lock
    if exempt is None:  # an older snapshot: root is exempt outside containers
        identity = facts.identity
        exempt = not isinstance(identity, Unknown) and identity.uid == 0 and identity.container is None
    return limit if limit is not None and limit < ENOUGH and not exempt and registers(facts, side) else None


def registers(facts: HostFacts, side: RdmaSide | None) -> bool:
    """Return whether NCCL registers memory for RDMA.

    NCCL registers memory if at least one of the RDMA ports that NCCL may use is up.
    """
    up = ((device.name, port.number) for device in known(facts.rdma) for port in device.ports if port.state == "ACTIVE")
    return any(side is None or (side.rdma.off is None and side.rdma.spec.accepts(*port)) for port in up)


ADVICE = make_advice(
    "{who} could not register memory for RDMA: its memlock limit (ulimit -l) is too low, or the kernel has no memory "
    "left to pin.",
    "ulimit -l tells which. If it is not unlimited, set memlock to unlimited in /etc/security/limits.conf, for "
    "services with LimitMEMLOCK=infinity, for containers with --ulimit memlock=-1. If it is, the kernel has no "
    "pages that can be pinned, as on a GB10 whose free memory belongs to the contiguous memory allocator (CMA); see "
    "pinned-memory-short (NCD608) and dmesg. To see the limit of a process started over SSH:",
)

# Registering memory with an adapter fails with ENOMEM (12).
RULES = (
    root(
        r"(?:ibv_(?:reg_mr|reg_dmabuf_mr|create_qp|create_cq|alloc_pd|open_device)\w*.*(?:Cannot allocate memory"
        r"|errno ?:? ?12\b|ENOMEM))",
        "n1:1:2 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    hint(
        r"(?:RLIMIT_MEMLOCK|max(?:imum)? locked memory|only allow registering part of your physical"
        r"|memlock.{0,30}(?:too (?:low|small)|limit))",
        "WARNING: It appears that your OpenFabrics subsystem is configured to only allow registering part of your "
        "physical memory.",
        unless=r"\bunlimited\b",
    ),
)

SIGNS = LogSigns(RULES, ADVICE, interface=Case.adapter, hint=Grade.ROOT, hint_beside=("ib-fault", "plugin-fault"))
