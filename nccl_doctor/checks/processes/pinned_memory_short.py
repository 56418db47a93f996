"""The kernel can't pin memory for RDMA, although no limit prevents it.

What it means: NCCL fails with "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", although `ulimit -l`
prints "unlimited". If the GPU and the CPU share memory (GB10, DGX Spark), memory registration might fail as soon as a
large model is loaded. The pages that are still free after the model has been loaded belong to the contiguous memory
allocator (CMA). CMA pages must stay movable, so they can't be pinned.

How we know: on a host with an RDMA port that NCCL uses, /proc/meminfo shows a larger value for CmaFree than for
CmaTotal. Linux 7.0 adds the scratch area of kexec handover (KHO), about 9 GiB on a GB10, to the CMA pages, but counts
it only in CmaFree. This fault is also reported if a log or the output of the all-reduce shows that a memory
registration failed although the memlock limit is unlimited.

Fix: add `kho=off` to the kernel command line, or boot Linux 6.17 instead of 7.0. Without KHO, kdump and kexec still
work.

References: NVIDIA/NV-Kernels pull requests 590 and 591; MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259.
"""

from nccl_doctor.checks.effects import PINNING
from nccl_doctor.checks.processes.memlock_low import registers
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, clue
from nccl_doctor.logs.signs import LogSigns, PassStage, Scene, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.rdma_pairs import RdmaSide
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold, grouped

REMEDY = Fix(
    summary="Boot with kho=off on the kernel command line, or boot the previous kernel (6.17 instead of 7.0). Until "
    "then, a smaller cache for the model might be enough.",
    needs_root=True,
    risk="disruptive",
)


@check(
    "NCD608",
    phrase="too little memory to pin",
    severity=Severity.INFO,
    needs=("limits", "rdma"),
    explains=(PINNING,),
    row="limits",
)
def pinned_memory_short(view: View) -> Findings:
    """Yield one finding for all hosts on which the same amount of free memory can't be pinned.

    The finding is a warning on a GB10, and a note on other hosts.
    """
    sides = view.nccl.rdma.sides
    short = ((memory, host.name) for host, facts in view.facts if (memory := _unpinnable(facts, sides.get(host.name))))
    for (total, free, shared), hosts in grouped(short).items():
        where = f"each of {fold(hosts)}" if len(hosts) > 1 else hosts[0]
        yield Finding(
            hosts=tuple(hosts),
            message=f"{free - total >> 10} MiB of the free memory on {where} can't be pinned for RDMA buffers.",
            evidence=(f"/proc/meminfo: CmaFree {free} kB, CmaTotal {total} kB",),
            facts={"cma_free_kib": free, "cma_total_kib": total},
            severity=Severity.WARNING if shared else None,
            explains=None if shared else (),
            fix=REMEDY,
        )


def _unpinnable(facts: HostFacts, side: RdmaSide | None) -> tuple[int, int, bool] | None:
    """Return CmaTotal and CmaFree in KiB, and whether GPU and CPU share memory.

    Return None if CmaFree is unknown or does not exceed CmaTotal, or if NCCL registers no memory for RDMA.
    """
    cma = known(facts.limits).cma_kib
    shared = not isinstance(facts.gpus, Unknown) and any("GB10" in gpu.name for gpu in facts.gpus)
    return (*cma, shared) if cma is not None and cma[1] > cma[0] and registers(facts, side) else None


def instead(finding: Finding) -> tuple[str, Finding]:
    """Return the name and finding that replace memlock-low if the all-reduce failed although no limit is low."""
    words = f"The kernel can't pin memory for RDMA on {fold(finding.hosts)}, although the limit allows it."
    return "pinned-memory-short", finding.model_copy(update={"message": words, "fix": REMEDY})


UNLIMITED = r"(?:max locked memory|ulimit -l\b|RLIMIT_MEMLOCK|memlock).{0,30}\bunlimited\b|^CmaFree: +[1-9]\d* kB"
RULES = (clue(UNLIMITED, "max locked memory           (kbytes, -l) unlimited"),)


def _unlimited(scene: Scene) -> list[Event]:
    """Attribute a failed memory registration to the kernel if the log shows an unlimited memlock limit."""
    if all(event.wording != UNLIMITED for event in scene.events):
        return scene.events
    return scene.renamed("pinned-memory-short", Grade.ROOT, lambda e: e.name == "memlock-low" and e.grade is Grade.ROOT)


ADVICE = make_advice(
    "{who} can't pin memory for RDMA, although memlock is unlimited: the kernel has no pages to pin.",
    "Look at CmaFree and CmaTotal in /proc/meminfo: if CmaFree is larger, boot with kho=off or the previous kernel. "
    "Check the hosts:",
)
SIGNS = LogSigns(RULES, ADVICE, passes={PassStage.MEANING: _unlimited})
