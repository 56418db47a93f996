"""Words for shared memory, P2P, RDMA and plugins."""

from __future__ import annotations

import re

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.text import number
from nccl_doctor.logs.words import Said, said

_STATUS = re.compile(r"(?:error |status=)(?:\w+\()?(\d+)")
_EMPTY_GID = re.compile(r"(?i:gids?) ?[=:]? ?(?:::|0000:0000:0000:0000:0000:0000:0000:0000)(?:[ ,)]|$)")
_STATUSES = {
    4: "status 4 is a local protection error: memory that the adapter may not read, mostly GPU memory (GPUDirect, ACS)",
    5: "status 5 only says that the connection had failed before",
    9: "status 9: the other side refused the request",
    10: "status 10: the other side's memory was gone, mostly because its process had ended",
    11: "status 11: the other side failed",
    12: "status 12: no acknowledgement came, so link, GID index, VLAN, MTU or PFC are wrong, or the other side is gone",
    13: "status 13: the other side was never ready to receive",
}
"""Of ibv_wc_status, infiniband/verbs.h."""


def _shm_full(case: Case) -> Said:
    return said(
        f"Shared memory (/dev/shm) is full or too small on {case.who}; a container has 64 MB of it unless told more.",
        "Start the container with --ipc=host or --shm-size=16g; in Kubernetes mount an emptyDir with medium: Memory "
        "at /dev/shm. See what there is:",
        case.check(),
    )


def _shm_attach(case: Case) -> Said:
    return said(
        f"{case.who} could not open a shared memory segment that another rank of its host had made: containers that "
        "do not share /dev/shm, segments that were removed, or a rank that had ended.",
        "Give all ranks of a host one IPC namespace (--ipc=host), set RemoveIPC=no in logind.conf, and look for the "
        "first error of the other ranks.",
        case.check(),
    )


def _memlock(case: Case) -> Said:
    return said(
        f"{case.who} may not lock enough memory for RDMA (ulimit -l).",
        "Set memlock to unlimited in /etc/security/limits.conf, for services by LimitMEMLOCK=infinity, for "
        "containers by --ulimit memlock=-1. What counts is the limit of a process started over SSH:",
        case.check(),
    )


def _ib(case: Case) -> Said:
    statuses = [number(digits) for event in case.cause.events for digits in _STATUS.findall(event.text)]
    told = next((_STATUSES[status] for status in statuses if status is not None and status in _STATUSES), None)
    place = (f" over {case.device}" if case.device else "") + (f" to {case.target}" if case.address.ip else "")
    if any(_EMPTY_GID.search(event.text) for event in case.cause.events):
        told = "the GID of one side is empty, so its index (NCCL_IB_GID_INDEX) names no address of that port"
    return said(
        f"RDMA{place} failed on {case.who}" + (f": {told}." if told else "."),
        "Test the pair with ib_write_bw and look at the link (ibstat, ethtool). On RoCE unset NCCL_IB_GID_INDEX "
        "from NCCL 2.21 on, and set it before. NCCL_IB_DISABLE=1 shows whether all else works.",
        case.check(),
    )


def _gdr(case: Case) -> Said:
    return said(
        f"GPUs of {case.who} do not reach each other or the network adapter directly.",
        "Try NCCL_P2P_DISABLE=1 or NCCL_NET_GDR_LEVEL=LOC to see which way it is; then ACS and IOMMU off, "
        "nvidia-peermem loaded, the container with --ipc=host.",
        case.check(),
    )


def _plugin(case: Case) -> Said:
    return said(
        f"NCCL's network plugin failed on {case.who}.",
        "Look whether its devices are there (fi_info -p efa, /dev/infiniband in the container), whether the "
        "security group lets the hosts talk to each other, and whether its version fits this NCCL. NCCL_NET=Socket "
        "shows whether all else works.",
        case.check(),
    )


ADVICE = {
    "shm-exhausted": _shm_full,
    "shm-attach-failed": _shm_attach,
    "memlock-low": _memlock,
    "ib-fault": _ib,
    "gdr-p2p-fault": _gdr,
    "plugin-fault": _plugin,
}
