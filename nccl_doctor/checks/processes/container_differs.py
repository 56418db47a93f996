"""The job's container does not have the network, shared memory, limits or devices of its host.

What it means: the job fails or is slow although the host is configured correctly. In a bridge network (the default of
Docker and of Podman as root), NCCL advertises a container address such as 172.17.0.2, which other hosts can't reach. On
another host, the same address might belong to a local container. By default, /dev/shm in a container has a size of only
64 MiB, which is too small for NCCL and for data loaders. A container inherits its limits on locked memory and open
files from the container daemon, not from the host. GPUs and RDMA devices are available only if they were passed to the
container.

How we know: the probe runs in the container, and a small script on the host reads the network namespace, /dev/shm,
limits, devices and /etc/hosts for comparison. Harmless differences are not reported. A container's own network is
reported only if connections to or from the container failed. A limit of the container is reported only if the job needs
a higher limit and the host allows a higher limit. Missing RDMA devices are reported only if at least one RDMA port is
up. The probe opens each device in the container. ENOENT means that the device was not passed to the container. EACCES
and EPERM mean that the mode of the device file or the container's device rules deny access.

Fix: recreate the container with the options that the diagnosis shows, because most settings of a running container
can't be changed. Podman passes GPUs to a container by the Container Device Interface (CDI), whose specification
`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` writes on the host (as root). Only /dev/shm can be enlarged in a
running container, and the change is lost when the container stops. With Docker and nerdctl, root must enlarge it from
the host, because the default seccomp profile forbids mount(2) in the container even for `docker exec --privileged`.

References: docker-run(1): --network, --ipc, --shm-size, --ulimit, --device, --add-host. NCCL's user guide,
"Troubleshooting", "Docker".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_doctor.checks.effects import CONNECTIONS, CUDA, FILES, PINNING, RDMA, SHARED_MEMORY, SLOW_SOCKETS, SOCKETS
from nccl_doctor.checks.own_names import has_own_network, is_unreached
from nccl_doctor.checks.processes.memlock_low import too_low
from nccl_doctor.checks.processes.nofile_low import BASE, PER_RANK
from nccl_doctor.checks.processes.shm_small import MIB, WANTED, enough_gib, is_fatal
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.base import PENDING, Skipped, Unknown, known
from nccl_doctor.model.effect import Effect
from nccl_doctor.model.finding import Command, Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import InContainer
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import Host, HostFacts, world_size
from nccl_doctor.snapshot.network import Names
from nccl_doctor.snapshot.surroundings import Outside, Surroundings
from nccl_doctor.snapshot.system import Identity
from nccl_doctor.text.hostlist import capital, fold, grouped, listed
from nccl_doctor.text.inet import numeric

NETWORK = (
    "port-unreachable", "master-addr-not-local", "duplicate-address", "route-missing", "hostname-mismatch",
    "hostname-unresolvable", "ifname-no-match", "ifname-needed", "gloo-ifname-invalid",
)  # fmt: skip
"""Names of diagnoses for faults that a container's own network can cause."""
NVIDIA, INFINIBAND = "/dev/nvidia", "/dev/infiniband/"


@dataclass(frozen=True)
class Aspect:
    """A difference between a container and its host, with the ``docker run`` options that remove the difference."""

    name: str
    phrase: str
    options: tuple[str, ...]
    explains: tuple[str | Effect, ...]
    severity: Severity = Severity.WARNING


@dataclass(frozen=True)
class Sides:
    """A host with the facts that were gathered inside and outside the host's container."""

    view: View
    host: Host
    facts: HostFacts
    inside: Surroundings
    outside: Outside


_RUN = ("docker", "podman", "nerdctl")


LACKS = ("shm-small", "memlock-low", "nofile-low", "gpu-count-low", "rdma-device-inaccessible")


@check(
    "NCD606",
    phrase="container differs from its host",
    severity=Severity.WARNING,
    needs=("surroundings", "outside"),
    explains=(*NETWORK, *LACKS, CONNECTIONS, SHARED_MEMORY, PINNING, FILES, CUDA, RDMA, SOCKETS, SLOW_SOCKETS),
    row="limits",
    outside=True,
)
def container_differs(view: View) -> Findings:
    """Yield one finding per group of containers that differ from their hosts in the same way."""
    pairs = [
        Sides(view, host, facts, inside, outside)
        for host, facts in view.facts
        if (inside := known(facts.surroundings)) is not None and (outside := known(facts.outside)) is not None
    ]
    looks = (_network, _names, _shm, _memlock, _nofile, _gpus, _rdma)
    differing = [(sides, [aspect for look in looks for aspect in look(sides)]) for sides in pairs]
    gravest = [
        (sides, tuple(sorted(aspects, key=lambda aspect: -aspect.severity.rank))) for sides, aspects in differing
    ]
    groups = grouped(((sides.outside.place, aspects), sides) for sides, aspects in gravest)
    for (place, aspects), alike in groups.items():
        if aspects:
            hosts, phrases = tuple(sides.host.name for sides in alike), [aspect.phrase for aspect in aspects]
            last = ". It also has " if len(phrases) > 2 or "," in phrases[0] else " and "
            has = last.join(filter(None, ("; ".join(phrases[:-1]), phrases[-1])))
            yield Finding(
                hosts=hosts,
                message=f"{capital(place)} on {fold(hosts)} has {has}.",
                evidence=tuple(_evidence(aspects, alike)),
                facts={"place": place, "differs": [aspect.name for aspect in aspects]},
                severity=aspects[0].severity,
                explains=tuple(dict.fromkeys(name for aspect in aspects for name in aspect.explains)),
                fix=_fix(aspects, alike),
            )
    mesh = view.snapshot.mesh
    if isinstance(mesh, Skipped) and mesh.reason == PENDING and any(has_own_network(sides.facts) for sides in pairs):
        yield Unjudged((), PENDING)


def _evidence(aspects: tuple[Aspect, ...], alike: Sequence[Sides]) -> Iterator[str]:
    if any(entry.name == "network" for entry in aspects):
        chosen = {sides.host.name: sides.view.nccl.interfaces.get(sides.host.name) for sides in alike}
        used = ((name, f"{entry.name} ({entry.address})") for name, entry in chosen.items() if entry is not None)
        yield from folded((name, f"NCCL uses {what}, an address inside the container only") for name, what in used)
    names = {
        sides.host.name: facts.hostname
        for sides in alike
        if isinstance(facts := sides.facts.identity, Identity) and facts.hostname != sides.outside.hostname
    }
    if names:
        yield f"{fold(names)}: the hostname inside differs, for example {next(iter(names.values()))}"


def _fix(aspects: tuple[Aspect, ...], alike: Sequence[Sides]) -> Fix:
    outside = alike[0].outside
    if outside.runtime not in _RUN:
        return Fix(summary=f"{_OTHERS[outside.runtime]} What differs: {', '.join(aspect.name for aspect in aspects)}.")
    added = " ".join(dict.fromkeys(option for aspect in aspects for option in aspect.options))
    recreate = f"Recreate the container on the host: add {added} to its {outside.runtime} run options"
    if [aspect.name for aspect in aspects] != ["shm"]:
        return Fix(summary=f"{recreate}.")
    commands: list[Command] = []
    largest = 0
    for sides in alike:
        gib = enough_gib(known(sides.facts.shm), _shm_needed(sides))
        if gib is None:
            return Fix(summary=f"{recreate}.")
        largest = max(largest, gib)
        commands += on(sides.host.name, InContainer(gib, outside.runtime, sides.outside.name))
    recreate += " (or --shm-size=8g)"
    if outside.runtime != "podman":
        return Fix(
            summary=f"{recreate}. Until then, root on the host can enlarge it: `nsenter -t PID -m mount -o "
            f"remount,size={largest}g /dev/shm`, where PID is the State.Pid that `{outside.runtime} inspect` shows."
        )
    return Fix(summary=f"{recreate}. Until then (AppArmor can forbid it):", risk="safe", commands=tuple(commands))


_OTHERS = {
    "apptainer": "Start the instance again on the host without --net, and with --nv for GPUs; its limits are those of "
    "the shell that starts it.",
    "enter": "Start the process again with the host's network, devices and limits.",
}


def _network(sides: Sides) -> Iterator[Aspect]:
    if is_unreached(sides.view.snapshot, sides.host):
        phrase = "its own network, so no other host can reach it"
        yield Aspect("network", phrase, ("--network=host",), (*NETWORK, CONNECTIONS), Severity.ERROR)


def _names(sides: Sides) -> Iterator[Aspect]:
    """Yield a difference if names in the host's /etc/hosts do not resolve in the container."""
    resolution = sides.facts.resolution
    if not isinstance(resolution, Names) or is_unreached(sides.view.snapshot, sides.host):
        return
    answers = ((name, resolution.get(name)) for name in sides.outside.names if numeric(name) is None)
    lost = [name for name, answer in answers if answer is not None and not answer.addresses]
    if lost:
        phrase = f"no address for {listed(lost, 4)}, although the host's /etc/hosts has one"
        yield Aspect("names", phrase, ("--add-host=NAME:ADDRESS",), (*NETWORK, CONNECTIONS), Severity.ERROR)


def _shm(sides: Sides) -> Iterator[Aspect]:
    """Yield a difference if /dev/shm is smaller than on the host, and is at most 64 MiB or too small for the ranks."""
    shm, outside = sides.facts.shm, sides.outside.shm_bytes
    if isinstance(shm, Unknown) or shm.problem is not None or outside is None or shm.total_bytes >= outside:
        return
    needed = _shm_needed(sides)
    if shm.total_bytes > WANTED and shm.free_bytes >= needed:
        return
    severity = Severity.ERROR if is_fatal(sides.facts, shm, needed) else Severity.WARNING
    phrase = f"a /dev/shm of only {shm.total_bytes // MIB} MiB (host: {outside // MIB} MiB)"
    yield Aspect("shm", phrase, ("--ipc=host",), ("shm-small", SHARED_MEMORY), severity)


def _shm_needed(sides: Sides) -> int:
    return WANTED * sides.view.nproc(sides.host, sides.facts)


def _memlock(sides: Sides) -> Iterator[Aspect]:
    facts, outside = sides.facts, sides.outside.limits
    if isinstance(facts.limits, Unknown) or isinstance(facts.rdma, Unknown) or outside is None:
        return
    limit = too_low(facts, sides.view.nccl.rdma.sides.get(sides.host.name))
    if limit is not None and (outside.memlock_soft is None or outside.memlock_soft > limit):
        phrase = f"a memlock limit of {limit >> 10} KiB ({_host(outside.memlock_soft, 1 << 10)})"
        yield Aspect("memlock", phrase, ("--ulimit=memlock=-1",), ("memlock-low", PINNING))


def _nofile(sides: Sides) -> Iterator[Aspect]:
    limits, outside = sides.facts.limits, sides.outside.limits
    if isinstance(limits, Unknown) or outside is None or limits.nofile_soft is None:
        return
    needed = BASE + PER_RANK * world_size(sides.view.snapshot)
    if limits.nofile_soft < needed and (outside.nofile_soft is None or outside.nofile_soft >= needed):
        phrase = f"a limit of {limits.nofile_soft} open files ({_host(outside.nofile_soft, 1)})"
        yield Aspect("nofile", phrase, ("--ulimit=nofile=1048576",), ("nofile-low", FILES))


def _host(limit: int | None, unit: int) -> str:
    return f"host: {'no limit' if limit is None else limit // unit}"


def _gpus(sides: Sides) -> Iterator[Aspect]:
    phrase = _lacking(sides, NVIDIA, "GPU")
    if phrase and sides.host.node.cuda_visible_devices != "":
        # Podman before 5.0 accepts --gpus and ignores it
        option = "--device=nvidia.com/gpu=all" if sides.outside.runtime == "podman" else "--gpus=all"
        yield Aspect("gpus", phrase, (option,), ("gpu-count-low", CUDA), Severity.ERROR)


def _rdma(sides: Sides) -> Iterator[Aspect]:
    """Yield a difference if an RDMA port is up, but RDMA devices are missing or can't be opened in the container."""
    devices = sides.facts.rdma
    up = not isinstance(devices, Unknown) and any(port.state == "ACTIVE" for device in devices for port in device.ports)
    phrase = _lacking(sides, INFINIBAND, "RDMA device") if up else ""
    if phrase:
        options = ("--device=/dev/infiniband", "--cap-add=IPC_LOCK")
        follows = ("rdma-device-inaccessible", SOCKETS, SLOW_SOCKETS, RDMA)
        yield Aspect("rdma", phrase, options, follows)


def _lacking(sides: Sides, prefix: str, what: str) -> str:
    """Describe the devices that can't be used in the container. The text is empty if all devices can be used."""
    there = [path for path in sides.outside.devices if path.startswith(prefix)]
    inside = {path: error for path, error in sides.inside.devices.items() if path.startswith(prefix)}
    refused = [f"{path} ({error})" for path, error in inside.items() if error is not None]
    if refused:
        return f"no access to {listed(refused, 4)}"
    if there and not inside:
        return (
            f"no {what}: the host's {listed(there, 4)} {'is' if len(there) == 1 else 'are'} missing from the "
            "container's /dev (ENOENT)"
        )
    return ""
