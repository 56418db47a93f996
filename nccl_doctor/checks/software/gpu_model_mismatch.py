"""The job's GPUs are of different models, or have different amounts of memory.

What it means: every step takes as long as on the slowest GPU, and a batch that fits into the memory of the largest GPU
might be too large for the smallest GPU. NCCL uses only the algorithms (such as NVLink SHARP) that all ranks support.

How we know: the check compares the names and memory sizes that nvidia-smi shows for the GPUs of the job's ranks. A GPU
in multi-instance (MIG) mode reports no memory size, so only its name is compared. If torch is built for ROCm and no
host has an NVIDIA GPU, the PCI device IDs and memory sizes of the AMD GPUs are compared.

Fix: exclude the hosts that differ, or choose a batch size that fits into the smallest GPU memory. If the GPUs within
one machine differ, set `CUDA_DEVICE_ORDER=PCI_BUS_ID`, so that CUDA numbers them as nvidia-smi does.
"""

from collections import Counter

from nccl_doctor.checks.view import Findings, View, check, difference, ordered
from nccl_doctor.logs.rule import Grade, likely
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import rocm_choice, rocm_gpus, visible_gpus
from nccl_doctor.text.hostlist import fold

GIB = 1024
UNTOLD = (
    "which models of AMD GPUs the job will use is unknown: the kernel does not tell, or the job chooses among several"
)

# NCCL's own comparison of the ranks' GPUs (NCCL DIAG).
RULES = (
    likely(
        r"NCCL DIAG \[INFO\] GPU inventory: model mismatch .{0,80}rank\(s\) \{?(?P<rank>\d+)",
        "n1:1 NCCL DIAG [INFO] GPU inventory: model mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank "
        "0 (NVIDIA H100 80GB HBM3)",
    ),
)

SIGNS = LogSigns(
    RULES,
    make_advice(
        "According to NCCL's diagnostics, the GPUs of {who} are of a different model from the other ranks'.",
        "Leave those hosts out, or choose the batch size to fit the smallest GPU. Check the hosts:",
    ),
    warning_up_to=Grade.LIKELY,
)


@check(
    "NCD509", phrase="GPU models differ", severity=Severity.WARNING, needs=("gpus",), also=("gpu_driver",), row="GPUs"
)
def gpu_model_mismatch(view: View) -> Findings:
    kinds = {
        host.name: Counter(_kind(gpu.name, gpu.memory_total_mib) for gpu in gpus)
        for host, facts in view.facts
        if (gpus := visible_gpus(host.node, facts))
    }
    numbered = any(facts.gpus for _, facts in view.facts)
    if not numbered:
        kinds = _amd_kinds(view)
        untold = tuple(host.name for host, facts in view.facts if rocm_gpus(facts) and host.name not in kinds)
        yield from [Unjudged(untold, UNTOLD)] if untold else []
    mixed = {name for name, counts in kinds.items() if len(counts) > 1}
    between = difference("GPUs", {name: next(iter(counts)) for name, counts in kinds.items() if name not in mixed})
    hosts = ordered(kinds, mixed | set(between.outliers if between else ()))
    if not hosts:
        return
    within = [f"{name}: {', '.join(f'{n} x {kind}' for kind, n in kinds[name].items())}" for name in sorted(mixed)]
    numbers = f" With CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA numbers the GPUs of {fold(sorted(mixed))} as nvidia-smi does."
    order = numbers if mixed and numbered else ""
    ways = [*(["differ from each other"] if mixed else []), *(["from those on the other hosts"] if between else [])]
    unlike = " or ".join(ways) if mixed else f"differ {ways[0]}"
    yield Finding(
        hosts=hosts,
        message=f"The GPUs on {fold(hosts)} {unlike}, so the slowest GPU limits the speed of all ranks.",
        evidence=(*([str(between)] if between else []), *within),
        facts={"gpus": {name: dict(counts) for name, counts in kinds.items()}},
        fix=f"Leave these hosts out (-x), or choose the batch size to fit the smallest memory.{order}",
    )


def _amd_kinds(view: View) -> dict[str, Counter[str]]:
    """Count each host's AMD GPUs by model. Hosts on which the models in use are unknown are left out."""
    rows = [(host, facts, gpus) for host, facts in view.facts if (gpus := rocm_gpus(facts))]
    # only some boards report a name, so the device id is compared
    names = {gpu.device: gpu.name for *_, gpus in rows for gpu in gpus if gpu.name}
    kinds: dict[str, Counter[str]] = {}
    for host, facts, gpus in rows:
        counts = Counter(_kind(names.get(gpu.device) or f"PCI 1002:{gpu.device}", gpu.memory_mib) for gpu in gpus)
        # ROCm numbers GPUs by the kernel's topology, which may not be the order on the bus
        if all(gpu.device for gpu in gpus) and (len(counts) == 1 or not rocm_choice(host.node, facts)):
            kinds[host.name] = counts
    return kinds


def _kind(name: str, memory_mib: int | None) -> str:
    return name if memory_mib is None else f"{name} with {round(memory_mib / GIB)} GiB"
