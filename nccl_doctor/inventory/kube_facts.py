"""From a pod of the API to what is kept of it, and to how it is entered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from nccl_doctor.inventory.kube_api import Container, Pod
from nccl_doctor.inventory.kube_state import unready
from nccl_doctor.snapshot.pods import PodFacts

SIDECARS = frozenset({"istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar", "envoy", "cilium-envoy"})
"""Containers of service meshes, which accept connections in a pod's place."""
_DEFAULT = "kubectl.kubernetes.io/default-container"
_NETWORKS = "k8s.v1.cni.cncf.io/network-status"
_OWN = frozenset({"pytorch", "trainer", "node"})
"""What Kubeflow's operators call the container that trains."""
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_DEVICE = re.compile(r"(nvidia\.com|amd\.com)/[\w.-]+|rdma/[\w.-]+|vpc\.amazonaws\.com/efa|.*(hca|rdma|sriov).*")


def training_container(pod: Pod) -> Container:
    """The one in which the job runs: the default of kubectl exec, Kubeflow's, the one with devices, or the first."""
    containers = pod.spec.containers
    named = {one.name: one for one in containers}
    wished = pod.metadata.annotations.get(_DEFAULT, "")
    if wished in named:
        return named[wished]
    mine = [one for one in containers if one.name not in SIDECARS] or [*containers]
    return next((one for one in mine if one.name in _OWN), None) or next((one for one in mine if devices(one)), mine[0])


def facts(pod: Pod, container: Container) -> PodFacts:
    """What the judgement may want of a pod."""
    spec, security = pod.spec, container.security
    volume, size = _shm(pod, container)
    every = (*spec.containers, *spec.init_containers)
    addresses = [one.ip for one in pod.status.pod_ips] or [one for one in (pod.status.pod_ip,) if one is not None]
    return PodFacts(
        pod=pod.metadata.name,
        namespace=pod.metadata.namespace,
        container=container.name,
        machine=spec.node,
        owner=f"{pod.owner.kind}/{pod.owner.name}" if pod.owner else "",
        unready=unready(pod),
        host_network=spec.host_network,
        networks=_networks(pod),
        shm_volume=volume,
        shm_bytes=size,
        devices=devices(container),
        capabilities=tuple(one.removeprefix("CAP_") for one in security.capabilities.add),
        privileged=security.privileged,
        containers=tuple(one.name for one in every),
        labels=pod.metadata.labels,
        addresses=tuple(addresses),
        hostname=spec.hostname,
        subdomain=spec.subdomain,
        ports={port.name: port.number for one in spec.containers for port in one.ports if port.name},
        variables=tuple(one.name for one in container.env),
    )


def devices(container: Container) -> dict[str, int]:
    """GPUs and RDMA devices that a container gets; of these what is asked for is what may be used."""
    asked: Mapping[str, object] = {**container.resources.requests, **container.resources.limits}
    found = {name: quantity(count) for name, count in asked.items() if _DEVICE.fullmatch(name)}
    return {name: count for name, count in found.items() if count}


def quantity(text: object) -> int | None:
    """A quantity of the API, ``64Gi``, as a number; None where it is none or no whole one."""
    found = re.fullmatch(r"([0-9]{1,15})([A-Za-z]{0,2})", str(text))
    return int(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else None


def _shm(pod: Pod, container: Container) -> tuple[str, int | None]:
    """The volume at /dev/shm, and its bound."""
    at = next((one.name for one in container.mounts if one.path.rstrip("/") == "/dev/shm"), "")  # noqa: S108 - a name
    volume = next((one for one in pod.spec.volumes if at and one.name == at), None)
    return at, quantity(volume.empty_dir.limit) if volume is not None and volume.empty_dir is not None else None


def _networks(pod: Pod) -> tuple[str, ...]:
    """Names of the networks that Multus lists, the pod's own first; what is no such list is none."""
    try:
        told = json.loads(pod.metadata.annotations.get(_NETWORKS, "[]"))
    except (ValueError, RecursionError):
        return ()
    names = [one.get("name") for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    return tuple(name[:253] for name in names if isinstance(name, str))[:64]
