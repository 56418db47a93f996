"""Shared memory (/dev/shm) has too little room for the ranks on the host.

What it means: NCCL ends with "Error while creating shared memory segment /dev/shm/nccl-…: No space left on device",
or a data loader's worker with "Bus error" and "unable to allocate shared memory". Docker gives a container 64 MiB.

How we know: the size of /dev/shm and what is free in it. NCCL's ranks on one host meet in segments of 9.6 MB a
channel, and each keeps one of 33 MB for its network proxy; data loaders hand batches over there. So 64 MiB are wanted
for each rank on the host, and 32 are the least where GPUs are used.

Fix: enlarge it, `mount -o remount,size=… /dev/shm`, for good in /etc/fstab; start a container with `--ipc=host` or
`--shm-size`; or remove what dead jobs left there (`ls -l /dev/shm`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from nccl_doctor.commands import on
from nccl_doctor.model import Finding, Fix, Severity
from nccl_doctor.ranks import nproc
from nccl_doctor.registry import Unjudged, View, check
from nccl_doctor.shell import line
from nccl_doctor.snapshot import HostFacts, Shm, Unknown, known

MIB = 1 << 20
WANTED = 64 * MIB
LEAST = 32 * MIB


@check("NCD605", severity=Severity.WARNING, needs=("shm",), explains=("allreduce-failed", "allreduce-timeout"))
def shm_small(view: View) -> Iterator[Finding | Unjudged]:
    """One finding a host: how much is lacking differs."""
    for host, facts in view.facts:
        shm = known(facts.shm)
        ranks = nproc(host.node, facts, alone=len(view.snapshot.cluster.nodes) == 1)
        free = shm.free_bytes
        if free >= WANTED * ranks:
            continue
        uses_gpus = not isinstance(facts.gpus, Unknown) and bool(facts.gpus)
        yield Finding(
            hosts=(host.name,),
            message=f"Shared memory (/dev/shm) on {host.name} has {free // MIB} MiB free; "
            f"{'1 rank wants' if ranks == 1 else f'{ranks} ranks want'} {WANTED * ranks // MIB} MiB.",
            evidence=(f"{shm.total_bytes // MIB} MiB in all, {free // MIB} MiB free",),
            facts={"free_bytes": free, "total_bytes": shm.total_bytes, "needed_bytes": WANTED * ranks},
            severity=Severity.ERROR if uses_gpus and free < LEAST * ranks else None,
            fix=_fix(host.name, facts, shm, ranks),
        )


def _fix(host: str, facts: HostFacts, shm: Shm, ranks: int) -> Fix:
    contained = isinstance(facts.identity, Unknown) or facts.identity.container is not None
    if contained:
        return Fix(summary="Start the container with --ipc=host, or with --shm-size=8g.")
    used = shm.total_bytes - shm.free_bytes
    gib = max(1, math.ceil((used + 2 * WANTED * ranks) / (1 << 30)))
    return Fix(
        summary="Enlarge it (for good in /etc/fstab):",
        risk="safe",
        needs_root=True,
        commands=on(host, line("mount -o remount,size={gib}g /dev/shm", gib=gib)),
    )
