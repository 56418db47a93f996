"""Shared memory (/dev/shm) is missing, not writable, or too small for the ranks on the host.

What it means: NCCL fails with "Error while creating shared memory segment", or a data loader worker fails with "Bus
error" and "unable to allocate shared memory". Docker gives a container only 64 MiB of shared memory by default. If
/dev/shm can't be used at all, Python's multiprocessing.Lock() fails, and so does every data loader with workers.

How we know: the check reads the size of /dev/shm and its free space, and tests whether the SSH user may write to
/dev/shm. Ranks on one host communicate through shared memory segments of 9.6 MB per channel, and each rank has a
segment of 33 MB for its network proxy. Data loaders pass batches through shared memory. The check recommends 64 MiB per
rank, and reports less than 32 MiB per rank as an error on hosts with GPUs. The total size should be at least 128 MiB,
since the data loaders of a single rank can fill Docker's default of 64 MiB.

Fix: enlarge /dev/shm with `mount -o remount,size=… /dev/shm`, and set the size in /etc/fstab to make the change
permanent. Start a container with `--ipc=host` or `--shm-size`. Use `ls -l /dev/shm` to find files that finished jobs
left behind, and remove these files. The mode of /dev/shm must be 1777, so that all users can write to it.
"""

import math
from dataclasses import dataclass

from nccl_doctor.checks.effects import SHARED_MEMORY
from nccl_doctor.checks.view import Findings, View, check, folded, on_each, pasted
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.operations.system import SHM, FileMode, Remount, ShmFolder, ShmMount
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.system import Shm
from nccl_doctor.text.hostlist import fold

MIB = 1 << 20
WANTED = 64 * MIB
LEAST = 128 * MIB
"""Minimum size of /dev/shm in bytes, which is enough for one rank whose data loaders have workers."""


@dataclass(frozen=True)
class _Lack:
    ranks: int
    needed: int
    total: int
    severity: Severity | None
    contained: bool
    gib: int | None
    problem: str | None
    pod: bool


@check(
    "NCD605",
    phrase="shared memory is small",
    severity=Severity.WARNING,
    needs=("shm",),
    explains=(SHARED_MEMORY,),
    row="limits",
)
def shm_small(view: View) -> Findings:
    """Yield one finding for all hosts with the same shortage of shared memory.

    A finding can include both hosts without shared memory and hosts with too little.
    """
    lacks: dict[_Lack, dict[str, int]] = {}
    for host, facts in view.facts:
        shm = known(facts.shm)
        ranks = view.nproc(host, facts)
        needed = WANTED * ranks
        if shm.problem is not None or shm.free_bytes < needed or shm.total_bytes < LEAST:
            lack = _Lack(
                ranks=ranks,
                needed=needed if shm.free_bytes < needed else LEAST,
                total=shm.total_bytes,
                severity=Severity.ERROR if is_fatal(facts, shm, needed) else None,
                contained=not isinstance(facts.identity, Unknown) and facts.identity.container is not None,
                gib=enough_gib(shm, needed),
                problem=shm.problem,
                pod=host.name in view.kube.pods,
            )
            lacks.setdefault(lack, {})[host.name] = shm.free_bytes
    findings = {
        lack: _unusable(lack, tuple(free)) if lack.problem else _finding(lack, free) for lack, free in lacks.items()
    }
    for missing in [lack for lack in lacks if lack.problem == "missing"]:
        small = next((lack for lack in findings if not lack.problem and lack.contained == missing.contained), None)
        if small is not None:
            findings[missing] = _both(findings[missing], findings.pop(small))
    yield from findings.values()


def _both(missing: Finding, small: Finding) -> Finding:
    commands = (*missing.fix.commands, *small.fix.commands)
    summary = small.fix.summary if not commands else f"{missing.fix.summary} {small.fix.summary}"
    return Finding(
        hosts=(*missing.hosts, *small.hosts),
        message=f"{missing.message} {small.message}",
        evidence=(*missing.evidence, *small.evidence),
        facts={**small.facts, **missing.facts},
        severity=missing.severity,
        fix=pasted(summary, commands, needs_root=missing.fix.needs_root),
    )


def is_fatal(facts: HostFacts, shm: Shm, needed: int) -> bool:
    """Return whether ranks with GPUs have less than half of the shared memory that they need."""
    return not isinstance(facts.gpus, Unknown) and bool(facts.gpus) and 2 * shm.free_bytes < needed


def enough_gib(shm: Shm, needed: int) -> int | None:
    """Return a sufficient size of /dev/shm in GiB, or None if that size exceeds the machine's memory."""
    gib = max(1, math.ceil((shm.total_bytes - shm.free_bytes + 2 * needed) / (1 << 30)))
    return gib if shm.memory_bytes is None or gib << 30 <= max(shm.memory_bytes, 1 << 30) else None


def _unusable(lack: _Lack, hosts: tuple[str, ...]) -> Finding:
    if lack.problem == "missing":
        what = f"There is no shared memory (/dev/shm) on {fold(hosts)}"
        if lack.contained:
            start = "start the container with --ipc=host, or with --shm-size=8g"
            fix = Fix(summary=f"Mount a tmpfs on /dev/shm with mode 1777, as every distribution does; {start}.")
        else:
            mount = on_each(hosts, ShmFolder(), ShmMount())
            fix = pasted("Mount it, as every distribution does:", mount, needs_root=True)
    else:
        what = f"The SSH user has no write permission for shared memory (/dev/shm) on {fold(hosts)}"
        chmod = on_each(hosts, FileMode("1777", (SHM,)))
        fix = pasted("Set the usual mode:", chmod, needs_root=True)
    return Finding(
        hosts=hosts,
        message=f"{what}, so data loaders with workers will fail. Ranks with GPUs that share a host will also fail.",
        facts={"problem": lack.problem, "needed_bytes": lack.needed},
        severity=Severity.ERROR,
        fix=fix,
    )


def _finding(lack: _Lack, free: dict[str, int]) -> Finding:
    hosts, least = tuple(free), min(free.values())
    wants = "1 rank needs" if lack.ranks == 1 else f"{lack.ranks} ranks together need"
    wants = "1 rank with data loader workers needs" if lack.needed > WANTED * lack.ranks else wants
    at_most = "only " if len(set(free.values())) == 1 else "as little as "
    return Finding(
        hosts=hosts,
        message=f"Shared memory (/dev/shm) on {fold(hosts)} has {at_most}{least // MIB} MiB free, but "
        f"{wants} {lack.needed // MIB} MiB.",
        evidence=folded(
            (host, f"{lack.total // MIB} MiB in all, {each // MIB} MiB free") for host, each in free.items()
        ),
        facts={"free_bytes": least, "total_bytes": lack.total, "needed_bytes": lack.needed},
        severity=lack.severity,
        fix=_fix(hosts, lack),
    )


def _fix(hosts: tuple[str, ...], lack: _Lack) -> Fix:
    if lack.gib is None:
        return Fix(
            summary="Delete what is left in /dev/shm (`ls -l /dev/shm`: segments of jobs that have ended), or start "
            "fewer data loaders. A sufficient size would be more than the machine's memory."
        )
    if lack.pod:
        volume = f"an emptyDir with medium Memory and a sizeLimit of {lack.gib}Gi"
        return Fix(
            summary=f"Mount a volume at /dev/shm in the template of the job's pods, {volume} or larger (it counts as "
            "their memory), and start the job again."
        )
    if lack.contained:
        return Fix(
            summary="Start the container with --ipc=host, or with --shm-size=8g; if root may mount inside it, "
            f"`mount -o remount,size={lack.gib}g /dev/shm` works, too."
        )
    remount = on_each(hosts, Remount(lack.gib))
    return pasted("Enlarge it (for good in /etc/fstab):", remount, needs_root=True)
