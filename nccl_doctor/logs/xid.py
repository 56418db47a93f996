"""Errors of GPUs and NVSwitches that the driver reports (Xid, SXid), by their numbers.

NVIDIA's Xid catalogue: docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nccl_doctor.logs.words import Advice, advise

if TYPE_CHECKING:
    from nccl_doctor.logs.case import Case

_XID = re.compile(
    r"(?P<kind>S?Xid) \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{1,24})\): (?P<number>\d{1,6})"
    r"(?:, pid='?(?P<pid>\d{1,9}|<unknown>)'?)?(?:, name=(?P<name>[\w.-]{1,40}))?"
)
_MEANING = {
    13: "an exception in a kernel of the program, mostly an access beyond an array",
    31: "an access to memory that is not mapped: mostly the program, else a driver's fault",
    32: "damaged commands from the host: driver or PCIe",
    38: "a fault of the driver's firmware",
    43: "the program's channel was reset after a fault of its own; the GPU is well",
    45: "the program's channels were ended, after an earlier error or when it was killed",
    48: "an ECC error that could not be corrected: reset the GPU",
    61: "a fault of the GPU's own controller: reset it",
    62: "a fault of the GPU's own controller: reset it",
    63: "a memory row is to be remapped at the next reset",
    64: "a memory row could not be remapped: exchange the GPU if it comes again after a reset",
    69: "an exception in a kernel of the program",
    74: "an NVLink error: cable, bridge, switch or the other GPU",
    79: "the GPU has fallen off the bus: power, temperature, PCIe or the board; reboot",
    92: "many ECC errors that were corrected",
    94: "an ECC error that was contained in one program: start it again, reset the GPU soon",
    95: "an ECC error that was not contained: reset the GPU before any further work",
    109: "a context switch that did not end in time",
    119: "the GPU's system processor (GSP) does not answer: reset or reboot",
    120: "the GPU's system processor (GSP) failed: reset or reboot",
    121: "a corrected error of the link between CPU and GPU",
    136: "a link between GPUs failed at its start",
    137: "an NVLink error that was reported by the other side",
    140: "an ECC error in the GPU's memory that could not be recovered",
    143: "the GPU could not be set up",
    144: "an NVLink error",
    145: "an NVLink error",
    149: "an NVLink error",
    154: "the driver says what the GPU needs: a reset, a reboot or a drain",
}
"""By NVIDIA's Xid catalogue, in our words."""


def meaning_of_xid(case: Case) -> Advice | None:
    """What the number means, and of which GPU; None where no line holds one."""
    found = next((match for event in case.cause.events if (match := _XID.search(event.text))), None)
    if found is None:
        return None
    means = _MEANING.get(int(found["number"]), "see NVIDIA's catalogue of Xids")
    process = f", process {found['pid']}" if (found["pid"] or "").isdigit() else ""
    process += f" ({found['name']})" if process and found["name"] else ""
    place = f" on {case.who}" if case.who != "a rank" else ""
    return advise(
        f"{found['kind']} {found['number']} of GPU {found['bus']}{place}{process}: {means}.",
        "Where it is the program's fault: CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer. Else take the host out of the "
        "job, reset the GPU or reboot, and test it with dcgmi diag -r 3.",
        case.check(),
    )
