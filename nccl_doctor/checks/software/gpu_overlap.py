"""Two nodes of the job use the same GPU.

What it means: NCCL fails with "Duplicate GPU detected" (from version 2.30 on, "Multiple Ranks are using the same
GPU/Partition"), or two ranks compete for the GPU's memory until one of them runs out of memory.

How we know: from `cuda_visible_devices` in the hosts file, the check determines which GPUs the ranks of each node use,
and compares the UUIDs of these GPUs. The same UUID on two nodes means that the nodes are one machine under two names or
addresses. If the hosts file itself assigns the same GPU to two nodes, the file is rejected before any host is
contacted. nvidia-smi numbers the GPUs in the order of the PCI bus, as CUDA does if CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
By default, CUDA assigns number 0 to the fastest GPU.

Fix: give each node its own GPUs with `cuda_visible_devices` (such as 0,1 and 2,3), or remove one of the two nodes from
the hosts file.
"""

import itertools

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.effect import GIVING_UP, WAITS, Effect, Reach
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import visible_gpus
from nccl_doctor.snapshot.system import Gpu
from nccl_doctor.text.hostlist import fold_numbers, grouped

SHARED = Effect(
    ("duplicate-gpu", "gpu-memory", "cuda-error", "nccl-unknown-error", *WAITS, *GIVING_UP),
    Reach.OWN,
    "NCCL does not allow two ranks on one GPU unless NCCL 2.30 or later is used with NCCL_MULTI_RANK_GPU_ENABLE=1, and "
    "two jobs on one GPU share the GPU's memory",
    ("nccl",),
)


@check(
    "NCD504",
    phrase="GPU used twice",
    severity=Severity.ERROR,
    needs=("gpus",),
    explains=("host-listed-twice", SHARED),
    row="GPUs",
)
def gpu_overlap(view: View) -> Findings:
    used: dict[str, dict[str, Gpu]] = {}
    for host, facts in view.facts:
        mine = visible_gpus(host.node, facts)[: view.nproc(host, facts)]
        used[host.name] = {gpu.uuid: gpu for gpu in mine if gpu.uuid.startswith("GPU-")}
    users = grouped((uuid, name) for name, gpus in used.items() for uuid in gpus)
    pairs = dict.fromkeys(pair for hosts in users.values() for pair in itertools.combinations(hosts, 2))
    for name, other in pairs:
        shared = [gpu for uuid, gpu in used[name].items() if uuid in used[other]]
        yield Finding(
            hosts=(name, other),
            message=f"{name} and {other} are the same machine, and both use "
            f"GPU{'s' * (len(shared) > 1)} {fold_numbers(gpu.index for gpu in shared)}.",
            evidence=tuple(f"GPU {gpu.index} ({gpu.name}), {gpu.uuid}: on {name} and on {other}" for gpu in shared),
            facts={"uuids": [gpu.uuid for gpu in shared]},
            fix="In the hosts file, set cuda_visible_devices to different GPUs for the two, or remove one of the two.",
        )
