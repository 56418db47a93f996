"""What one host told, in a phrase for each thing: what ``-v`` shows besides verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from nccl_doctor.firewall.manager import managed_by
from nccl_doctor.snapshot import HostFacts, Unknown
from nccl_doctor.snapshot.network import Route
from nccl_doctor.snapshot.pods import PodFacts
from nccl_doctor.snapshot.system import Gpu, TorchInfo

T = TypeVar("T")
MOST_ROUTES = 4


def describe_host(facts: HostFacts, pod: PodFacts | None = None) -> dict[str, str]:
    """Versions, GPUs, limits, shared memory and routes; what is not known says why; first what a pod is."""
    around = facts.outside
    container = {} if around is None else {"container": _told(around, lambda it: f"{it.place}, on {it.hostname}")}
    return (
        ({} if pod is None else {"pod": _pod(pod)})
        | container
        | {
            "python": _told(facts.python, lambda it: f"{it.version}, {it.executable}"),
            "torch": _told(facts.torch, _torch),
            "GPUs": _told(facts.gpus, _gpus),
            "limits": _told(
                facts.limits, lambda it: f"nofile {_limit(it.nofile_soft)}, memlock {_limit(it.memlock_soft)}"
            ),
            "firewall": _told(facts.firewall, lambda it: managed_by(it) or "none"),
            "shared memory": _told(facts.shm, lambda it: f"{it.total_bytes / 1e9:.3g} GB"),
            "routes": _told(facts.routes, _routes),
        }
    )


def _told(fact: T | Unknown, words: Callable[[T], str]) -> str:
    return f"unknown: {fact.reason}" if isinstance(fact, Unknown) else words(fact)


def _pod(pod: PodFacts) -> str:
    """Where it runs, and what it was given of the node."""
    shm = "" if pod.shm_bytes is None else f" of {pod.shm_bytes / 1e9:.3g} GB at most"
    added = "all" if pod.privileged else ", ".join(pod.capabilities)
    parts = (
        f"{pod.owner} on {pod.machine}" if pod.owner else f"on {pod.machine}",
        f"container {pod.container}",
        "the node's network" if pod.host_network else "",
        f"networks {', '.join(pod.networks)}" if pod.networks else "",
        ", ".join(f"{count} {name}" for name, count in pod.devices.items()),
        f"volume {pod.shm_volume} at /dev/shm{shm}" if pod.shm_volume else "",
        f"capabilities {added}" if added else "",
    )
    return "; ".join(part for part in parts if part)


def _torch(torch: TorchInfo | None) -> str:
    if torch is None:
        return "none"
    parts = (torch.version, torch.cuda and f"CUDA {torch.cuda}", torch.nccl and f"NCCL {torch.nccl}")
    return ", ".join(part for part in parts if part)


def _gpus(gpus: tuple[Gpu, ...]) -> str:
    kinds = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _routes(routes: tuple[Route, ...]) -> str:
    """The first of the main table, IPv4 before IPv6."""
    told = [
        f"{one.destination}{f' via {one.gateway}' if one.gateway else ''} {one.interface}"
        for one in sorted(routes, key=lambda route: route.family)
    ]
    return "; ".join([*told[:MOST_ROUTES], *([f"{len(told) - MOST_ROUTES} more"] if len(told) > MOST_ROUTES else [])])
