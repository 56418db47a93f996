"""In which order the pods of a job are its nodes, and which pods of a list are the job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_doctor.inventory.kube_api import Pod

GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_ROLES = ("master", "launcher", "leader", "chief")
_INDEXES = (
    ("jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/job-index"),
    (
        "batch.kubernetes.io/job-completion-index",
        "training.kubeflow.org/replica-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "apps.kubernetes.io/pod-index",
    ),
)
"""Labels of the API itself, of JobSet, LeaderWorkerSet and Kubeflow's training operator: which Job, which pod of it."""
_REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
_ROLE = "training.kubeflow.org/replica-type"
_OVER = ("Succeeded", "Failed")

Rank = tuple[int, str, int, int, tuple[str | int, ...]]


def rank(pod: Pod) -> Rank:
    """What a pod is sorted by: its role, the Job within a set, its index there; the name where it has none."""
    labels = pod.metadata.annotations | pod.metadata.labels
    role = labels.get(_ROLE, "").lower()
    job, own = (_first(labels, names) for names in _INDEXES)
    replicated = "" if "jobset.sigs.k8s.io/job-global-index" in labels else labels.get(_REPLICATED, "")
    name = () if own is not None else _natural(pod.metadata.name)
    return (0 if role in _ROLES else 1, replicated, job or 0, own or 0, name)


def current(pods: Iterable[Pod]) -> list[Pod]:
    """One pod a place, in order: of those that a controller has replaced the newest, those that live before all."""
    by_place: dict[tuple[Rank, str], Pod] = {}
    for pod in pods:
        place = rank(pod), pod.owner.name if pod.owner else ""
        other = by_place.get(place)
        if other is None or _age(pod) > _age(other):
            by_place[place] = pod
    return sorted(by_place.values(), key=lambda pod: (rank(pod), pod.metadata.name))


def over(pods: Sequence[Pod]) -> bool:
    """Whether all have ended."""
    return all(pod.status.phase in _OVER for pod in pods)


def _age(pod: Pod) -> tuple[bool, bool, float]:
    return pod.status.phase not in _OVER, pod.metadata.deleted is None, pod.metadata.created.timestamp()


def _first(labels: dict[str, str], names: Sequence[str]) -> int | None:
    found = (labels[name] for name in names if name in labels)
    return next((int(text) for text in found if re.fullmatch(r"[0-9]{1,9}", text)), None)


def _natural(name: str) -> tuple[str | int, ...]:
    """The name with its numbers as numbers, so that train-2 stands before train-10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"([0-9]{1,15})", name))
