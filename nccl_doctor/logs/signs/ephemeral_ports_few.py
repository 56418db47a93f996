"""How logs show ephemeral-ports-few: a bind to port 0 or a connect that finds no free port."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import failed_connects
from nccl_doctor.logs.rule import Grade, LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The range to widen."""
    return advise(
        f"{case.who} found no free port in the kernel's ephemeral range, from which NCCL draws one for each listener.",
        "Widen net.ipv4.ip_local_port_range on every host, and let NCCL use fewer connections (leave PXN on).",
        case.check(),
    )


RULES = (
    *failed_connects(Grade.ROOT, "Cannot assign requested address", "Cannot assign requested address"),
    root(
        r"NCCL WARN .*Call to bind failed ?: ?Address already in use",
        "n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed: Address already in use",
    ),
)

SIGNS = LogSigns(RULES, advice, network=True, hint=Grade.ROOT)
