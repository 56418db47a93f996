"""How logs show env-bad-value: NCCL's warnings of a setting or a file that it can't use."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import Grade, LogSigns, likely, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """Which setting to correct."""
    return advise(
        f"NCCL does not take a setting as it was meant on {case.who}.",
        "Correct or unset the variable or the file that the line names; look into ~/.nccl.conf and /etc/nccl.conf too:",
        case.check(),
    )


RULES = (
    root(
        r"Invalid NCCL_COMM_ID",
        "n1:9:9 [0] bootstrap.cc:88 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>",
    ),
    root(
        r"WARN .*(?:Could not open XML (?:topology|graph) file|XML (?:Topology|Graph) has wrong version|XML Parse"
        r"|XML Mismatch|XML Import Channel)",
        "n1:1:2 [0] graph/xml.cc:500 NCCL WARN Could not open XML topology file /etc/topo.xml : No such file or "
        "directory",
    ),
    root(
        r"WARN .*(?:[Nn]o algorithm/protocol available|Unrecognized (?:element|prefix) token"
        r"|All entries except the first must have a prefix)",
        "n1:1:2 [0] enqueue.cc:1 NCCL WARN Error : no algorithm/protocol available",
    ),
    likely(
        r"WARN .*(?:Invalid NCCL_\w+|NCCL_\w+\S* (?:value|has invalid|is too|unknown value|is out of range"
        r"|set to a value))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Invalid NCCL_COMM_BLOCKING value 7",
    ),
)

SIGNS = LogSigns(RULES, advice, after=("plugin-fault",), warning_up_to=Grade.LIKELY)
