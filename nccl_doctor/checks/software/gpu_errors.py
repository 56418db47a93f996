"""A GPU has reported uncorrected memory errors or needs a reset, or its driver has logged Xid errors in the last day.

What it means: the job might fail with "CUDA error: uncorrectable ECC error encountered" or "unspecified launch
failure". A collective might hang because a rank whose GPU fell off the bus (Xid 79) never joins the collective.

How we know: nvidia-smi reports uncorrected ECC errors since the driver was loaded, or memory rows whose remapping is
pending or has failed. The diagnosis is also made if nvidia-smi prints an error such as ERR!, "[GPU is lost]", "[GPU
requires reset]" or "[Unknown Error]" instead of a value. The kernel log is searched for Xid messages of the last day.
If the user has no permission to read the kernel log (`kernel.dmesg_restrict`), only nvidia-smi's output is evaluated.
Xids 13, 31, 43, 45, 68, 69 and 137 are ignored, because they normally come from an error or the end of a program, not
from a faulty GPU. For example, Xid 45 is also logged when a program is killed. Errors are ignored if the driver later
reported that the GPU had recovered (Xid 154 with the recovery action 0x0).

Fix: to complete pending row remappings, reset the GPU with `nvidia-smi --gpu-reset -i N`, or reboot the host. A GPU
with new errors after a reset needs service. NVIDIA's "Xid Errors" page explains each Xid.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.system import GpuHealth, Xid
from nccl_doctor.text.hostlist import grouped

PROGRAMS_OWN = frozenset({13, 31, 43, 45, 68, 69, 137})
"""Xids that normally come from a program, not from a faulty GPU (NVIDIA's "Xid Errors", column "User app error")."""
RECOVERY = 154
OFF_THE_BUS = 79
LOST = frozenset({OFF_THE_BUS, 95, 119, 120, 140, RECOVERY})
"""Xids after which a GPU can't run jobs (GPU off the bus, GSP failure, uncorrected ECC error, or reset required)."""


MENDED = re.compile(r"recovery action changed from .{1,60} to 0x0\b")
"""The driver's message (Xid 154) for a GPU that no longer needs recovery."""
_AFTER = "if the errors come back, leave the host out (-x) and have the GPU examined."


@check(
    "NCD510",
    phrase="GPU errors",
    severity=Severity.WARNING,
    needs=("gpus",),
    also=("gpu_health", "xids"),
    in_logs=("cuda-error",),
    row="GPUs",
)
def gpu_errors(view: View) -> Findings:
    for host, facts in view.facts:
        gpu_health = () if isinstance(facts.gpu_health, Unknown) else facts.gpu_health
        gone = {gpu.index: gpu.fault for gpu in known(facts.gpus) if gpu.fault}
        gone |= {gpu.index: gpu.fault for gpu in gpu_health if gpu.fault}
        counted = [line for gpu in gpu_health for line in _health(gpu)]
        logged = list(_standing(() if isinstance(facts.xids, Unknown) else facts.xids))
        if not (gone or counted or logged):
            if isinstance(facts.gpu_health, Unknown):
                yield Unjudged((host.name,), facts.gpu_health.reason)
            continue
        lost = bool(gone) or any(x.number in LOST for x in logged) or any(gpu.remap_failed for gpu in gpu_health)
        warned = [gpu for gpu in gpu_health if gpu.warning]
        message = ""
        if gone:
            first = min(gone)
            message = f'On {host.name}, nvidia-smi reports "{gone[first]}" for GPU {first}, so no job can use that GPU.'
        elif len(warned) == len(counted) and not logged:
            message = f'On {host.name}, nvidia-smi warns about GPU {warned[0].index}: "{warned[0].warning}".'
        yield Finding(
            hosts=(host.name,),
            message=message or f"A GPU on {host.name} is faulty or needs a reset: {_fault(logged, gpu_health)}.",
            evidence=(*(f"GPU {index}: {fault}" for index, fault in sorted(gone.items())), *counted, *_log(logged)),
            facts={"xids": sorted({x.number for x in logged}), "gpus": sorted(gone)},
            severity=Severity.ERROR if lost else None,
            fix=f"Reboot; {_AFTER}"
            if any("lost" in fault.lower() for fault in gone.values())
            else f"Reset the GPU (nvidia-smi --gpu-reset -i N, with no job on it) or reboot; {_AFTER}",
        )


def _fault(logged: Sequence[Xid], gpus: Sequence[GpuHealth]) -> str:
    fatal = [xid.number for xid in logged if xid.number in LOST]
    if OFF_THE_BUS in fatal:
        return "the GPU has fallen off the PCI bus"
    if any(gpu.remap_failed for gpu in gpus):
        return "a memory row could not be replaced"
    return f"the driver has logged Xid {fatal[0]}" if fatal else "the driver has reported errors for this GPU"


def _standing(xids: Iterable[Xid]) -> Iterator[Xid]:
    """Yield the Xids that a GPU itself caused, except Xids that were logged before that GPU recovered."""
    mended: dict[str, float] = {}
    every = list(xids)
    for xid in every:
        if xid.number == RECOVERY and MENDED.search(xid.text):
            mended[xid.bus_id] = min(xid.age_s, mended.get(xid.bus_id, xid.age_s))
    for xid in every:
        if xid.number not in PROGRAMS_OWN and xid.age_s < mended.get(xid.bus_id, math.inf):
            yield xid


def _health(gpu: GpuHealth) -> Iterator[str]:
    if gpu.warning:
        yield f"GPU {gpu.index}: {gpu.warning}"
    if gpu.ecc_uncorrected:
        yield f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
    if gpu.remap_pending:
        yield f"GPU {gpu.index}: a memory row waits for a reset to be replaced"
    if gpu.remap_failed:
        yield f"GPU {gpu.index}: a memory row could not be replaced"


def _log(logged: list[Xid]) -> Iterator[str]:
    for (bus_id, number), same in grouped(((x.bus_id, x.number), x) for x in logged).items():
        last = min(same, key=lambda x: x.age_s)
        ago = f"{last.age_s / 60:.0f} min" if last.age_s < 3600 else f"{last.age_s / 3600:.0f} h"
        times = f"{len(same)} times, last " if len(same) > 1 else ""
        yield f"Xid {number} on {bus_id}: {times}{ago} ago: {last.text}"


ADVICE = make_advice(
    "NCCL's diagnostics report an error in a GPU or its links on {who}.",
    "Run nvidia-smi -q and dcgmi diag -r 3 on that host.",
)

# The driver's Xid lines, and NCCL's diagnostics about ECC and NVLink (NCCL DIAG).
RULES = (
    root(
        r"S?Xid \((?:PCI:)?[0-9a-fA-F:.]+(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): \d+",
        "[ 4242.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.",
        unless=r" Xid \([^)]*\): (?:13|31|43|45|63|68|69|92|94|121|137)\b|Xid (?i:.{1,200}\bnon-?fatal)",
    ),
    likely(
        r"(?:NVRM: |nvidia-\w+: )?S?Xid \((?:PCI:)?[0-9a-fA-F:.]+(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): \d+",
        "[ 4242.1] NVRM: Xid (PCI:0000:3b:00): 63, pid=4242, Row Remapper: New row marked for remapping",
    ),
    likely(
        r"NCCL DIAG \[INFO\] (?:ECC|NVLink|NVLINK|S?Xid)\b.{0,80}"
        r"(?:uncorrect|volatile|error|inactive|down|Xid \d|reported|detected|mismatch|inconsistent)"
        r"(?:.{0,200}\bon host (?P<host>[\w.-]{1,253}\w))?",
        "n1:4242 NCCL DIAG [INFO] ECC: uncorrectable errors on rank(s) 3 in comm 0x5f",
        unless=r"ECC: no |: no events|no errors|0 errors|not (?:available|supported)|unavailable|No user action",
    ),
)

SIGNS = LogSigns(RULES, lambda case: meaning_of_xid(case) or ADVICE(case), after=("cuda-error",))

_XID = re.compile(
    r"(?P<kind>S?Xid) \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{1,24})(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?P<number>\d{1,6})"
    r"(?:, pid='?(?P<pid>\d{1,9}|<unknown>)'?)?(?:, name=(?P<name>[\w.-]{1,40}))?"
)
_MEANING = {
    13: "an exception in one of the program's kernels, mostly an out-of-bounds access",
    31: "an access to unmapped memory, mostly by the program, sometimes by the driver",
    32: "corrupted commands from the host, because of the driver or PCIe",
    38: "an error of the driver's firmware",
    43: "the program's channel was reset after an error of its own; the GPU is healthy",
    45: "the program's channels were closed, after an earlier error or when it was killed",
    48: "an ECC error that could not be corrected; reset the GPU",
    61: "a failure of the GPU's internal microcontroller; reset the GPU",
    62: "a failure of the GPU's internal microcontroller; reset the GPU",
    63: "a memory row is to be remapped at the next reset",
    64: "a memory row could not be remapped; replace the GPU if this recurs after a reset",
    69: "an exception in one of the program's kernels",
    74: "an NVLink error (cable, bridge, switch or the other GPU)",
    79: "the GPU has fallen off the bus (power, temperature, PCIe or the board); reboot",
    92: "a high rate of corrected ECC errors",
    94: "an ECC error that was contained to one program; restart it, and reset the GPU soon",
    95: "an ECC error that was not contained; reset the GPU before any further work",
    109: "a context switch that timed out",
    119: "the GPU's system processor (GSP) does not respond; reset the GPU or reboot",
    120: "the GPU's system processor (GSP) failed; reset the GPU or reboot",
    121: "a corrected error on the link between CPU and GPU",
    136: "a link between GPUs failed to start",
    137: "an illegal access to another GPU's memory over NVLink, mostly by the program, sometimes by the driver",
    140: "an ECC error in the GPU's memory that could not be recovered",
    143: "the GPU could not be initialized",
    144: "an NVLink error",
    145: "an NVLink error",
    149: "an NVLink error",
    154: "the GPU needs a recovery that the driver names (a reset, a reboot or a drain)",
}
"""Meanings of Xids, from NVIDIA's Xid catalogue."""


def meaning_of_xid(case: Case) -> Advice | None:
    """Return advice about the meaning of the first Xid or SXid in the log lines, or None if no line contains an Xid."""
    xid = next((match for event in case.cause.events if (match := _XID.search(event.text))), None)
    if xid is None:
        return None
    place = f" on {case.who}" if case.who != "a rank" else ""
    if xid["kind"] == "SXid":
        return advise(
            f"SXid {xid['number']} of the NVSwitch {xid['bus']}{place}: see NVIDIA's Fabric Manager guide.",
            "Take the host out of the job, read the log of nvidia-fabricmanager, and reset all GPUs of the board "
            "together or reboot. If the error comes back, have the link and the board examined.",
            case.check(),
        )
    means = _MEANING.get(int(xid["number"]), "see NVIDIA's catalogue of Xids")
    process = f", process {xid['pid']}" if (xid["pid"] or "").isdigit() else ""
    process += f" ({xid['name']})" if process and xid["name"] else ""
    return advise(
        f"Xid {xid['number']} of GPU {xid['bus']}{place}{process}: {means}.",
        "If the program is at fault, use CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer. If not, take the host out of "
        "the job, reset the GPU or reboot, and test it with dcgmi diag -r 3.",
        case.check(),
    )
