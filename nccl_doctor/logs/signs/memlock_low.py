"""How logs show memlock-low: registering memory with an adapter fails for want of it (ENOMEM, 12)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import Grade, LogSigns, hint, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """Where the limit is set."""
    return advise(
        f"{case.who} may not lock enough memory for RDMA (ulimit -l).",
        "Set memlock to unlimited in /etc/security/limits.conf, for services by LimitMEMLOCK=infinity, for "
        "containers by --ulimit memlock=-1. What counts is the limit of a process started over SSH:",
        case.check(),
    )


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
    ),
)

SIGNS = LogSigns(RULES, advice, hint=Grade.ROOT, hint_beside=("ib-fault", "plugin-fault"))
