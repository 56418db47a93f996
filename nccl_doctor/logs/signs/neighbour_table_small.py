"""How logs show neighbour-table-small: the kernel's own line."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The thresholds to raise."""
    return advise(
        f"The kernel of {case.who} keeps fewer neighbours' addresses than there are hosts on the net, and drops "
        "packets to the rest.",
        "Raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 well above the number of hosts, on every host:",
        case.check(),
    )


RULES = (
    root(
        r"neighbou?r table overflow",
        "[ 4242.1] neighbour: arp_cache: neighbor table overflow!",
    ),
)

SIGNS = LogSigns(RULES, advice)
