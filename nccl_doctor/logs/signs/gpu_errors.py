"""How logs show gpu-errors: the driver's Xid lines, and NCCL's diagnostics of ECC and NVLink (NCCL DIAG)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, likely, root
from nccl_doctor.logs.words import Advice, advise
from nccl_doctor.logs.xid import meaning_of_xid


def advice(case: Case) -> Advice:
    """What the Xid means; what NCCL's diagnostics say where no line names one."""
    return meaning_of_xid(case) or advise(
        f"NCCL's diagnostics report an error of a GPU or its links on {case.who}.",
        "See nvidia-smi -q and dcgmi diag -r 3 there.",
        case.check(),
    )


RULES = (
    root(
        r"S?Xid \((?:PCI:)?[0-9a-fA-F:.]+\): \d+",
        "[ 4242.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.",
        unless=r" Xid \S+ (?:13|31|43|45|63|68|69|92|94|121)\b|Xid (?i:.{1,200}\bnon-?fatal)",
    ),
    likely(
        r"(?:NVRM: |nvidia-\w+: )?S?Xid \((?:PCI:)?[0-9a-fA-F:.]+\): \d+",
        "[ 4242.1] NVRM: Xid (PCI:0000:3b:00): 63, pid=4242, Row Remapper: New row marked for remapping",
    ),
    likely(
        r"NCCL DIAG \[INFO\] (?:ECC|NVLink|NVLINK|S?Xid)\b.{0,80}"
        r"(?:uncorrect|volatile|error|inactive|down|Xid \d|reported)",
        "n1:4242 NCCL DIAG [INFO] ECC: uncorrectable errors on rank(s) 3 in comm 0x5f",
        unless=r"no errors|0 errors|not (?:available|supported)|unavailable",
    ),
)

SIGNS = LogSigns(RULES, advice, after=("cuda-error",))
