"""Words for GPUs, drivers, memory and versions."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rules import xid
from nccl_doctor.logs.words import Said, said


def _oom(case: Case) -> Said:
    return said(
        f"Memory ran out on {case.who}.",
        "For GPU memory: a smaller batch, or free what else holds the GPU. For the host's: more memory for the job, "
        "fewer data loading workers. See what is left over on the GPUs:",
        case.check(),
    )


def _cuda(case: Case) -> Said:
    return xid.told(case) or said(
        f"CUDA failed on {case.who}. Later errors of this process are of no account; the call that failed may be an "
        "earlier one.",
        "Run that host alone with CUDA_LAUNCH_BLOCKING=1, and look for Xid and ECC errors (dmesg, nvidia-smi -q).",
        case.check(),
    )


def _fabric(case: Case) -> Said:
    return said(
        f"The NVSwitch fabric of {case.who} is not ready: nvidia-fabricmanager does not run, was restarted while "
        "GPUs were in use, or does not fit the driver.",
        "Start nvidia-fabricmanager of the driver's own version (systemctl status nvidia-fabricmanager); after a "
        "restart of it reset the GPUs or reboot.",
        case.check(),
    )


def _driver(case: Case) -> Said:
    return said(
        f"The NVIDIA driver of {case.who} does not fit: too old for this CUDA, not loaded, or updated while running.",
        "Install a driver that this CUDA needs, or a torch built for the driver's CUDA; after an update reboot.",
        case.check(),
    )


def _duplicate(case: Case) -> Said:
    return said(
        f"Two ranks use one GPU ({case.who}).",
        'Give each process its own: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else, and no '
        "CUDA_VISIBLE_DEVICES that overlaps. Containers with one hostname and boot id also look so.",
        case.check(),
    )


def _local_rank(case: Case) -> Said:
    return said(
        f"{case.who} asked for a GPU that is not there: its local rank is as large as the number of GPUs it may see, "
        "or larger.",
        "Start no more processes a host than it shows GPUs (--nproc_per_node, CUDA_VISIBLE_DEVICES), and use "
        "LOCAL_RANK, not RANK.",
        case.check(),
    )


def _gpu_count(case: Case) -> Said:
    return said(
        f"{case.who} sees fewer GPUs than the job wants, or none.",
        "Look at CUDA_VISIBLE_DEVICES, at the container's --gpus, at the scheduler's request and at nvidia-smi:",
        case.check(),
    )


def _torch(case: Case) -> Said:
    return said(
        f"The Python of {case.who} has no torch, or one without CUDA or NCCL.",
        "Install a build of torch for this CUDA into the very environment that the job runs in:",
        case.check(),
    )


def _version(case: Case) -> Said:
    versions = " and ".join(case.log.facts.nccl_versions)
    seen = f" The log names NCCL {versions}." if len(case.log.facts.nccl_versions) > 1 else ""
    return said(
        f"Libraries that do not fit together on {case.who}: another NCCL, CUDA or torch than the program was built "
        f"for, or than the other ranks have.{seen}",
        "Make them the same on all hosts: one nvidia-nccl package, no older libnccl.so in LD_LIBRARY_PATH. See what "
        "each has:",
        case.check(),
    )


def _nofile(case: Case) -> Said:
    return said(
        f"{case.who} has too many files open: each connection of NCCL is one, and their number grows with the job.",
        "Raise the limit where the job starts (ulimit -n 1048576 in the batch script; LimitNOFILE for services), "
        "and see what a process started over SSH gets:",
        case.check(),
    )


ADVICE = {
    "out-of-memory": _oom,
    "cuda-error": _cuda,
    "fabric-manager-down": _fabric,
    "cuda-driver-mismatch": _driver,
    "duplicate-gpu": _duplicate,
    "local-rank-invalid": _local_rank,
    "gpu-count-low": _gpu_count,
    "torch-missing": _torch,
    "version-mismatch": _version,
    "nofile-low": _nofile,
}
