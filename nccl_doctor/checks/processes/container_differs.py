"""The container that the job runs in is not the host: its network, shared memory, limits or devices do not suffice.

What it means: the host is fine, and the job fails or is slow all the same. In a bridge network, which docker and podman
give where nobody says another, NCCL announces an address such as 172.17.0.2: the other hosts can't reach it, or find
their own container there. /dev/shm has 64 MiB, too little for NCCL's ranks and for data loaders. Limits of locked
memory and of open files are the daemon's, not the host's. GPUs and RDMA devices are there only if they were handed in.

How we know: the probe runs in the container, and a small look at the host beside it tells the same of that: the
network namespace, /dev/shm, limits, devices, /etc/hosts. What merely differs is left alone: a network of the
container's own counts where dials to or from it failed, a limit where the job needs more and the host has it, RDMA
devices where a port is up. Each device is opened in the container: ENOENT is one that was not handed in, EACCES and
EPERM one that the user or the container's device rules may not open.

Fix: what a container is given at its start can't be changed later: start it again with the options that stand with
the diagnosis, besides its own. /dev/shm alone can be enlarged while it runs, for as long as it runs.

References: docker-run(1): --network, --ipc, --shm-size, --ulimit, --device, --add-host. NCCL's user guide,
"Troubleshooting", "Docker".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_doctor.checks.own_names import has_own_network
from nccl_doctor.checks.processes._container_aspects import (
    ALLREDUCE,
    NETWORK,
    Aspect,
    Sides,
    aspects,
    shm_gib,
)
from nccl_doctor.checks.view import View, check
from nccl_doctor.checks.wording import folded
from nccl_doctor.model.finding import Command, Finding, Fix, Severity, on
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot import PENDING, Identity, Skipped, known
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.shell import line

_RUN = ("docker", "podman", "nerdctl")


@check(
    "NCD606",
    severity=Severity.WARNING,
    needs=("surroundings", "outside"),
    explains=(
        *NETWORK,
        "shm-small",
        "memlock-low",
        "nofile-low",
        "gpu-count-low",
        "transport-fallback",
        "allreduce-slow",
        *ALLREDUCE,
    ),
    row="limits",
    outside=True,
)
def container_differs(view: View) -> Iterator[Finding | Unjudged]:
    """Yields one finding for the containers of one name that differ from their hosts in the same way."""
    told = [
        Sides(view, host, facts, inside, outside)
        for host, facts in view.facts
        if (inside := known(facts.surroundings)) is not None and (outside := known(facts.outside)) is not None
    ]
    groups = grouped(((sides.outside.place, aspects(sides)), sides) for sides in told)
    for (place, found), alike in groups.items():
        if found:
            yield _finding(place, found, alike)
    mesh = view.snapshot.mesh
    if isinstance(mesh, Skipped) and mesh.reason == PENDING and any(has_own_network(sides.facts) for sides in told):
        yield Unjudged((), PENDING)


def _finding(place: str, found: tuple[Aspect, ...], alike: Sequence[Sides]) -> Finding:
    hosts = tuple(sides.host.name for sides in alike)
    return Finding(
        hosts=hosts,
        message=f"{place[0].upper()}{place[1:]} on {fold(hosts)} has {_and([one.phrase for one in found])}.",
        evidence=tuple(_evidence(found, alike)),
        facts={"place": place, "differs": [one.name for one in found]},
        severity=found[0].severity,
        explains=tuple(dict.fromkeys(name for one in found for name in one.explains)),
        fix=_fix(found, alike),
    )


def _and(phrases: Sequence[str]) -> str:
    """Phrases that may hold commas, joined."""
    return "; ".join(phrases[:-1]) + "; and " + phrases[-1] if len(phrases) > 1 else phrases[0]


def _evidence(found: tuple[Aspect, ...], alike: Sequence[Sides]) -> Iterator[str]:
    if any(one.name == "network" for one in found):
        chosen = {sides.host.name: sides.view.nccl.interfaces.get(sides.host.name) for sides in alike}
        yield from folded(
            (name, f"NCCL uses {one.name} ({one.address}), an address of the container alone")
            for name, one in chosen.items()
            if one is not None
        )
    names = {
        sides.host.name: facts.hostname
        for sides in alike
        if isinstance(facts := sides.facts.identity, Identity) and facts.hostname != sides.outside.hostname
    }
    if names:
        yield f"{fold(names)}: the hostname is another one inside, such as {next(iter(names.values()))}"


def _fix(found: tuple[Aspect, ...], alike: Sequence[Sides]) -> Fix:
    outside = alike[0].outside
    if outside.runtime not in _RUN:
        return Fix(summary=f"{_OTHERS[outside.runtime]} What differs: {', '.join(one.name for one in found)}.")
    run = " ".join((outside.runtime, "run", *dict.fromkeys(option for one in found for option in one.options)))
    if [one.name for one in found] != ["shm"]:
        return Fix(summary=f"Start the container again on the host, with {run} besides its own options.")
    summary = (
        f"Start the container again on the host, with {run} (or --shm-size=8g) besides its own options. Until then:"
    )
    return Fix(summary=summary, risk="safe", commands=tuple(command for sides in alike for command in _enlarged(sides)))


def _enlarged(sides: Sides) -> tuple[Command, ...]:
    outside = sides.outside
    remount = line(
        "{runtime} exec -u 0 --privileged {name} mount -o remount,size={gib}g /dev/shm",
        runtime=outside.runtime,
        name=outside.name,
        gib=shm_gib(sides),
    )
    return on(sides.host.name, remount)


_OTHERS = {
    "apptainer": "Start the instance again on the host without --net, and with --nv for GPUs; its limits are those of "
    "the shell that starts it.",
    "enter": "Start the process again where it has what the host has.",
}
