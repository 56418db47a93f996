"""A GPU reported uncorrected memory errors, or its driver wrote errors (Xid) in the last day.

What it means: the job may end with "CUDA error: uncorrectable ECC error encountered" or "unspecified launch failure",
or hang in a collective, for a rank on a GPU that fell off the bus (Xid 79) never arrives.

How we know: `nvidia-smi`'s counters since the driver was loaded (uncorrected ECC errors, rows that wait for their
replacement or could not be replaced), and the lines "NVRM: Xid" of the last day in the kernel's log, where the user
may read it (`kernel.dmesg_restrict`); where not, the counters alone are judged. Xids that a program itself causes
(13, 31, 43, 45, 68, 69) are left out: they tell of a bug in it, not of the GPU.

Fix: a reset (`nvidia-smi --gpu-reset -i N`, or a reboot) brings pending rows into effect; a GPU that shows errors
again needs service. NVIDIA's "Xid Errors" page says what each number means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.snapshot import Unknown, known
from nccl_doctor.snapshot.hardware import GpuHealth, Xid

PROGRAMS_OWN = frozenset({13, 31, 43, 45, 68, 69})
"""Xids that a faulty program causes on a sound GPU (NVIDIA's "Xid Errors", column "User app error")."""
LOST = frozenset({79, 119, 120, 140, 154})
"""Fallen off the bus, no answer of its system processor, unrecovered ECC, recovery wanted: no job runs there now."""


@check("NCD510", severity=Severity.WARNING, needs=("gpu_health",), in_logs=("cuda-error",), row="GPUs")
def gpu_errors(view: View) -> Findings:
    """Yields one finding a host."""
    for host, facts in view.facts:
        gpu_health = known(facts.gpu_health)
        counted = [line for gpu in gpu_health for line in _health(gpu)]
        logged = [x for x in (() if isinstance(facts.xids, Unknown) else facts.xids) if x.number not in PROGRAMS_OWN]
        if not counted and not logged:
            continue
        lost = any(x.number in LOST for x in logged) or any(gpu.remap_failed for gpu in gpu_health)
        yield Finding(
            hosts=(host.name,),
            message=f"A GPU of {host.name} is broken or needs a reset: "
            + ("its driver lost it." if lost else "it reported errors in the last day."),
            evidence=(*counted, *_log(logged)),
            facts={"xids": sorted({x.number for x in logged})},
            severity=Severity.ERROR if lost else None,
            fix=Fix(
                summary="Reset the GPU (nvidia-smi --gpu-reset -i N, with no job on it) or reboot; if the errors come "
                "back, leave the host out (-x) and have the GPU looked at."
            ),
        )


def _health(gpu: GpuHealth) -> Iterator[str]:
    if gpu.ecc_uncorrected:
        yield f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
    if gpu.remap_pending:
        yield f"GPU {gpu.index}: a memory row waits for a reset to be replaced"
    if gpu.remap_failed:
        yield f"GPU {gpu.index}: a memory row could not be replaced"


def _log(logged: list[Xid]) -> Iterator[str]:
    """Each kind of error once, with its count and how long ago it came last."""
    counts = Counter((x.bus_id, x.number) for x in logged)
    for (bus_id, number), count in counts.items():
        last = min((x for x in logged if (x.bus_id, x.number) == (bus_id, number)), key=lambda x: x.age_s)
        times = f"{count} times, last " if count > 1 else ""
        yield f"Xid {number} on {bus_id}: {times}{_ago(last.age_s)} ago: {last.text}"


def _ago(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"
