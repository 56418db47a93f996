"""Two nodes of the job use the same GPU.

What it means: NCCL fails with "Duplicate GPU detected : rank 0 and rank 2 both on CUDA device …", or both ranks compete
for the GPU's memory until one runs out of it.

How we know: the identifiers (UUIDs) of the GPUs that each node's ranks see, given `cuda_visible_devices` in the hosts
file. The same identifier on two nodes means that they are one machine under two names or addresses. If the hosts file
alone shows this, it is rejected before any host is contacted. nvidia-smi numbers GPUs by their place on the bus, and so
does CUDA if CUDA_DEVICE_ORDER=PCI_BUS_ID is set; if it is not, CUDA may put the fastest first.

Fix: give each node its own GPUs, with `cuda_visible_devices: "0,1"` on one and `"2,3"` on the other, or remove one of
the two nodes from the hosts file.
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
    "NCCL refuses two ranks on one GPU (Duplicate GPU detected, init.cc); two jobs share its memory",
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
    users = grouped((uuid, name) for name, own in used.items() for uuid in own)
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
