"""Extracts facts for checks from the Kubernetes API's description of a pod, and selects the container to enter.

Each reason why a pod can't be entered is explained in one sentence. In addition, the module selects and sorts the pods
that are the nodes of a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from nccl_doctor.inventory.kube_api import Container, ContainerState, Pod, StateDetail
from nccl_doctor.model.engines.kube import NotReady
from nccl_doctor.snapshot.surroundings import PodFacts
from nccl_doctor.text.hostlist import listed, nouns, quoted
from nccl_doctor.text.shell import line

_IMAGE = re.compile(r"ErrImage|ImagePull|InvalidImageName|RegistryUnavailable")
_LACK = re.compile(r"([0-9]+) Insufficient ([\w./-]*\w)")
_LONGEST = 600


def not_ready(pod: Pod, container: Container) -> NotReady | None:
    """Return the reason why the container can't be entered, or None if the container is running."""
    status, describe = pod.status, str(line("kubectl describe pods -n {namespace}", namespace=pod.metadata.namespace))
    if pod.metadata.deleted is not None:
        remedy = f"Wait until its controller has made another. It stays so where its node is lost: {describe}."
        return NotReady(detail="is being deleted", remedy=remedy)
    if status.phase in ("Succeeded", "Failed"):
        why = f": {status.reason}" if status.reason else _exit(_state(pod, container))
        remedy = "Start the job again, and check while it runs; its pods have to live for a check."
        return NotReady(detail=f"has ended ({status.phase}{why})", evidence=_evidence(status.message), remedy=remedy)
    state = _state(pod, container)
    if state.running is not None and status.phase == "Running":
        return None
    if status.phase == "Pending":
        waiting = _unscheduled(pod, container)
        if waiting is not None:
            return waiting
    return _held(state, pod, describe)


def unready(pod: Pod) -> str | None:
    """Return the reason why the cluster reports a running pod as not ready, or None if the pod is ready."""
    lacking = [item.name for item in pod.status.containers if not item.ready]
    condition = next((item for item in pod.status.conditions if item.type == "Ready"), None)
    if condition is None or condition.status == "True":
        return None
    if not lacking:
        return condition.reason or "not ready"
    are = "is" if len(lacking) == 1 else "are"
    return f"the {nouns(len(lacking), 'container')} {listed(map(quoted, lacking))} {are} not ready"


def _unscheduled(pod: Pod, container: Container) -> NotReady | None:
    condition = next(
        (item for item in pod.status.conditions if item.type == "PodScheduled" and item.status != "True"), None
    )
    if condition is None:
        return None
    if condition.reason == "SchedulingGated":
        remedy = "Whoever set the gates lifts them: Kueue, once the job's queue has room (kubectl get workloads)."
        return NotReady(
            detail="is held back by its scheduling gates", evidence=_evidence(condition.message), remedy=remedy
        )
    lacks = _LACK.findall(condition.message)
    if not lacks:
        remedy = "Change what it demands of a node (selector, affinity, tolerations), or give the cluster such a node."
        return NotReady(
            detail="is pending: no Kubernetes node accepts the pod",
            evidence=_evidence(condition.message),
            remedy=remedy,
        )
    asked = {name: container.resources.requests.get(name, container.resources.limits.get(name)) for _, name in lacks}
    what = " and ".join(name + (f" ({count} requested)" if count is not None else "") for name, count in asked.items())
    remedy = (
        "Ask for less, wait for other jobs to end, or have nodes added; kubectl describe nodes shows what is taken of "
    )
    remedy += f"{' and '.join(asked)}."
    return NotReady(
        detail=f"is pending: no Kubernetes node has enough {what}", evidence=_evidence(condition.message), remedy=remedy
    )


def _held(state: ContainerState, pod: Pod, describe: str) -> NotReady:
    later = f"See what the cluster says of it: {describe}."
    if state.waiting is not None:
        reason, evidence = state.waiting.reason or "no reason given", _evidence(state.waiting.message)
        if _IMAGE.search(reason):
            remedy = "Mend the image's name or tag, or give the pod the registry's secret (imagePullSecrets)."
            return NotReady(detail=f"does not get its image: {reason}", evidence=evidence, remedy=remedy)
        if reason == "CrashLoopBackOff":
            remedy = "See why its container ends each time: kubectl logs --previous, which nccl-doctor logs reads."
            return NotReady(detail="ends again and again (CrashLoopBackOff)", evidence=evidence, remedy=remedy)
        return NotReady(detail=f"has not started its container: {reason}", evidence=evidence, remedy=later)
    if state.terminated is not None:
        ended, evidence = f"runs, but its container has ended{_exit(state)}", _evidence(state.terminated.message)
        return NotReady(detail=ended, evidence=evidence, remedy=later)
    if pod.status.phase == "Unknown":
        return NotReady(detail="is lost: its node no longer tells of it", remedy=later)
    detail, evidence = f"is not running yet ({pod.status.phase})", _evidence(pod.status.message)
    return NotReady(detail=detail, evidence=evidence, remedy=later)


def _state(pod: Pod, container: Container) -> ContainerState:
    every = (*pod.status.containers, *pod.status.init_containers)
    return next((status.state for status in every if status.name == container.name), ContainerState())


def _exit(state: ContainerState) -> str:
    ended: StateDetail | None = state.terminated
    if ended is None:
        return ""
    words = [ended.reason, "" if ended.exit_code is None else f"status {ended.exit_code}"]
    return f": {', '.join(word for word in words if word)}"


def _evidence(message: str) -> tuple[str, ...]:
    line = re.sub(r"\s+", " ", message).strip()
    return (line[:_LONGEST],) if line else ()


SIDECARS = frozenset({"istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar", "envoy", "cilium-envoy"})
"""Names of service-mesh containers, which accept connections on behalf of a pod."""
_DEFAULT = "kubectl.kubernetes.io/default-container"
_NETWORKS = "k8s.v1.cni.cncf.io/network-status"
_OWN = frozenset({"pytorch", "trainer", "node"})  # names of the training container in Kubeflow's operators
_DECIMAL, _BINARY = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}, ("Ki", "Mi", "Gi", "Ti")
_UNITS = _DECIMAL | {unit: 1 << 10 * power for power, unit in enumerate(_BINARY, 1)}
_DEVICE = re.compile(r"(nvidia\.com|amd\.com)/[\w.-]+|rdma/[\w.-]+|vpc\.amazonaws\.com/efa|.*(hca|rdma|sriov).*")


def training_container(pod: Pod) -> Container:
    """Return the training container of a pod.

    The order of preference is the default container of ``kubectl exec``, Kubeflow's training container, a container
    with devices, and the first container.
    """
    containers = pod.spec.containers
    named = {container.name: container for container in containers}
    wished = pod.metadata.annotations.get(_DEFAULT, "")
    if wished in named:
        return named[wished]
    mine = [container for container in containers if container.name not in SIDECARS] or [*containers]
    return next((container for container in mine if container.name in _OWN), None) or next(
        (container for container in mine if devices(container)), mine[0]
    )


def facts(pod: Pod, container: Container) -> PodFacts:
    spec, security = pod.spec, container.security
    shm = next((item.name for item in container.mounts if item.path.rstrip("/") == "/dev/shm"), "")  # noqa: S108 - a name
    volumes = (item.empty_dir for item in spec.volumes if shm and item.name == shm)
    every = (*spec.containers, *spec.init_containers)
    addresses = [item.ip for item in pod.status.pod_ips] or [item for item in (pod.status.pod_ip,) if item is not None]
    return PodFacts(
        pod=pod.metadata.name,
        namespace=pod.metadata.namespace,
        container=container.name,
        machine=spec.node,
        owner=f"{pod.owner.kind}/{pod.owner.name}" if pod.owner else "",
        unready=unready(pod),
        host_network=spec.host_network,
        networks=_networks(pod),
        shm_volume=shm,
        shm_bytes=quantity(volume.limit) if (volume := next(volumes, None)) is not None else None,
        devices=devices(container),
        capabilities=tuple(item.removeprefix("CAP_") for item in security.capabilities.add),
        privileged=security.privileged,
        containers=tuple(item.name for item in every),
        labels=pod.metadata.labels,
        addresses=tuple(addresses),
        hostname=spec.hostname,
        subdomain=spec.subdomain,
        ports={port.name: port.number for item in spec.containers for port in item.ports if port.name},
        variables=tuple(item.name for item in container.env),
    )


def devices(container: Container) -> dict[str, int]:
    asked: Mapping[str, object] = {**container.resources.requests, **container.resources.limits}
    counts = {name: quantity(count) for name, count in asked.items() if _DEVICE.fullmatch(name)}
    return {name: count for name, count in counts.items() if count}


def quantity(text: object) -> int | None:
    """Return a Kubernetes quantity, such as ``64Gi``, as an integer, or None if the quantity can't be converted."""
    match = re.fullmatch(r"([0-9]{1,15})([A-Za-z]{0,2})", str(text))
    return int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None


def _networks(pod: Pod) -> tuple[str, ...]:
    try:
        networks = json.loads(pod.metadata.annotations.get(_NETWORKS, "[]"))
    except (ValueError, RecursionError):
        return ()
    names = [entry.get("name") for entry in networks if isinstance(entry, dict)] if isinstance(networks, list) else []
    return tuple(name[:253] for name in names if isinstance(name, str))[:64]


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
"""Labels that contain the index of a Job, or of a pod in its Job (Kubernetes, JobSet, LeaderWorkerSet, Kubeflow)."""
_REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
_ROLE = "training.kubeflow.org/replica-type"
_OVER = ("Succeeded", "Failed")

PodRank = tuple[int, str, int, int, tuple[str | int, ...]]


def rank(pod: Pod) -> PodRank:
    """Return a sort key that consists of a pod's role, replicated job, Job index, own index, and name."""
    labels = pod.metadata.annotations | pod.metadata.labels
    role = labels.get(_ROLE, "").lower()
    job, index = (_first(labels, names) for names in _INDEXES)
    replicated = "" if "jobset.sigs.k8s.io/job-global-index" in labels else labels.get(_REPLICATED, "")
    parts = re.split(r"([0-9]{1,15})", pod.metadata.name) if index is None else ()
    name = tuple(int(part) if part.isdecimal() else part for part in parts)
    return (0 if role in _ROLES else 1, replicated, job or 0, index or 0, name)


def current(pods: Iterable[Pod]) -> list[Pod]:
    """Return one pod for each rank, in rank order.

    If a rank has several pods, a pod that has not ended is preferred, then a pod that is not being deleted, and then
    the pod that was created last.
    """
    by_place: dict[tuple[PodRank, str], Pod] = {}
    for pod in pods:
        place = rank(pod), pod.owner.name if pod.owner else ""
        other = by_place.get(place)
        if other is None or _age(pod) > _age(other):
            by_place[place] = pod
    return sorted(by_place.values(), key=lambda pod: (rank(pod), pod.metadata.name))


def over(pods: Sequence[Pod]) -> bool:
    return all(pod.status.phase in _OVER for pod in pods)


def _age(pod: Pod) -> tuple[bool, bool, float]:
    return pod.status.phase not in _OVER, pod.metadata.deleted is None, pod.metadata.created.timestamp()


def _first(labels: dict[str, str], names: Sequence[str]) -> int | None:
    texts = (labels[name] for name in names if name in labels)
    return next((int(text) for text in texts if re.fullmatch(r"[0-9]{1,9}", text)), None)
