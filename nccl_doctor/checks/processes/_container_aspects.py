"""In what a container differs from the host around it, one function for each thing that matters to a job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_doctor.checks.own_names import is_unreached
from nccl_doctor.checks.processes.memlock_low import too_low
from nccl_doctor.checks.processes.nofile_low import BASE, PER_RANK
from nccl_doctor.checks.processes.shm_small import MIB, WANTED
from nccl_doctor.checks.view import View
from nccl_doctor.model.finding import Severity
from nccl_doctor.snapshot import Host, HostFacts, Names, Outside, Surroundings, Unknown, known
from nccl_doctor.snapshot.ranks import nproc, world_size
from nccl_doctor.text.inet import numeric

ALLREDUCE = ("allreduce-failed", "allreduce-timeout")
NETWORK = (
    "port-unreachable", "master-addr-not-local", "duplicate-address", "route-missing", "hostname-mismatch",
    "hostname-unresolvable", "ifname-no-match", "ifname-needed", "gloo-ifname-invalid",
)  # fmt: skip
"""What a network of the container's own leads to."""
GPU, RDMA = "/dev/nvidia", "/dev/infiniband/"


@dataclass(frozen=True)
class Aspect:
    """One thing.

    Attributes:
        phrase: goes into the sentence that begins with "has".
        options: of ``docker run`` that mend it.
        explains: what follows from it.
    """

    name: str
    phrase: str
    options: tuple[str, ...]
    explains: tuple[str, ...]
    severity: Severity = Severity.WARNING


@dataclass(frozen=True)
class Sides:
    """A host, and what both sides of its container's wall told."""

    view: View
    host: Host
    facts: HostFacts
    inside: Surroundings
    outside: Outside


def aspects(sides: Sides) -> tuple[Aspect, ...]:
    """All that differs and matters, the gravest first."""
    found = [one for look in (_network, _names, _shm, _memlock, _nofile, _gpus, _rdma) for one in look(sides)]
    return tuple(sorted(found, key=lambda aspect: -aspect.severity.rank))


def _network(sides: Sides) -> Iterator[Aspect]:
    if is_unreached(sides.view.snapshot, sides.host):
        phrase = "a network of its own, in which no other host reaches it"
        yield Aspect("network", phrase, ("--network=host",), (*NETWORK, *ALLREDUCE), Severity.ERROR)


def _names(sides: Sides) -> Iterator[Aspect]:
    """Names that the host's /etc/hosts knows and that resolve to nothing inside; in the host's network they would."""
    told = sides.facts.resolution
    if not isinstance(told, Names) or is_unreached(sides.view.snapshot, sides.host):
        return
    answers = ((name, told.get(name)) for name in sides.outside.names if numeric(name) is None)
    lost = [name for name, answer in answers if answer is not None and not answer.addresses]
    if lost:
        phrase = f"no address for {', '.join(lost[:4])}{' …' if len(lost) > 4 else ''}, which the host's /etc/hosts has"
        yield Aspect("names", phrase, ("--add-host=NAME:ADDRESS",), (*NETWORK, *ALLREDUCE), Severity.ERROR)


def _shm(sides: Sides) -> Iterator[Aspect]:
    """Less than the host, and what docker gives where nobody says a size, or too little for the ranks."""
    shm, outside = sides.facts.shm, sides.outside.shm_bytes
    if isinstance(shm, Unknown) or shm.problem is not None or outside is None or shm.total_bytes >= outside:
        return
    needed = shm_needed(sides)
    if shm.total_bytes > WANTED and shm.free_bytes >= needed:
        return
    uses_gpus = not isinstance(sides.facts.gpus, Unknown) and bool(sides.facts.gpus)
    severity = Severity.ERROR if uses_gpus and 2 * shm.free_bytes < needed else Severity.WARNING
    phrase = f"{shm.total_bytes // MIB} MiB of /dev/shm (the host: {outside // MIB})"
    yield Aspect("shm", phrase, ("--ipc=host",), ("shm-small", *ALLREDUCE), severity)


def shm_needed(sides: Sides) -> int:
    """Bytes of /dev/shm that the ranks want (shm_small)."""
    return WANTED * nproc(sides.host.node, sides.facts, alone=len(sides.view.snapshot.cluster.nodes) == 1)


def shm_gib(sides: Sides) -> int:
    """A size of /dev/shm that is enough, in GiB."""
    shm = known(sides.facts.shm)
    used = shm.total_bytes - shm.free_bytes
    return max(1, math.ceil((used + 2 * shm_needed(sides)) / (1 << 30)))


def _memlock(sides: Sides) -> Iterator[Aspect]:
    facts, outside = sides.facts, sides.outside.limits
    if isinstance(facts.limits, Unknown) or isinstance(facts.rdma, Unknown) or outside is None:
        return
    limit = too_low(facts)
    if limit is not None and (outside.memlock_soft is None or outside.memlock_soft > limit):
        phrase = f"{limit >> 10} KiB that a process may lock ({_host(outside.memlock_soft, 1 << 10)})"
        yield Aspect("memlock", phrase, ("--ulimit=memlock=-1",), ("memlock-low", *ALLREDUCE))


def _nofile(sides: Sides) -> Iterator[Aspect]:
    limits, outside = sides.facts.limits, sides.outside.limits
    if isinstance(limits, Unknown) or outside is None or limits.nofile_soft is None:
        return
    needed = BASE + PER_RANK * world_size(sides.view.snapshot)
    if limits.nofile_soft < needed and (outside.nofile_soft is None or outside.nofile_soft >= needed):
        phrase = f"{limits.nofile_soft} files that a process may open ({_host(outside.nofile_soft, 1)})"
        yield Aspect("nofile", phrase, ("--ulimit=nofile=1048576",), ("nofile-low", *ALLREDUCE))


def _host(limit: int | None, unit: int) -> str:
    return f"the host: {'no limit' if limit is None else limit // unit}"


def _gpus(sides: Sides) -> Iterator[Aspect]:
    """None of the host's GPUs, or one that does not open; fewer than all may be meant, and no GPU may be wanted."""
    phrase = _lacking(sides, GPU, "GPU")
    if phrase and sides.host.node.cuda_visible_devices != "":
        yield Aspect("gpus", phrase, ("--gpus=all",), ("gpu-count-low", *ALLREDUCE), Severity.ERROR)


def _rdma(sides: Sides) -> Iterator[Aspect]:
    """The same of RDMA devices whose port is up: NCCL goes on over sockets, slowly."""
    devices = sides.facts.rdma
    up = not isinstance(devices, Unknown) and any(port.state == "ACTIVE" for one in devices for port in one.ports)
    phrase = _lacking(sides, RDMA, "RDMA device") if up else ""
    if phrase:
        options = ("--device=/dev/infiniband", "--cap-add=IPC_LOCK")
        yield Aspect("rdma", phrase, options, ("transport-fallback", "allreduce-slow", *ALLREDUCE))


def _lacking(sides: Sides, prefix: str, what: str) -> str:
    """What of one kind can't be used inside, as a phrase; empty where that is fine."""
    there = [path for path in sides.outside.devices if path.startswith(prefix)]
    inside = {path: error for path, error in sides.inside.devices.items() if path.startswith(prefix)}
    refused = [f"{path} ({error})" for path, error in inside.items() if error is not None]
    if refused:
        return f"{what}s that do not open: {', '.join(refused[:4])}{' …' if len(refused) > 4 else ''}"
    if there and not inside:
        return f"no {what}: {', '.join(there[:4])}{' …' if len(there) > 4 else ''} of the host are not there (ENOENT)"
    return ""
