"""What ``kubectl exec`` is told of a node."""

from __future__ import annotations

from typing import ClassVar

from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.model.frozen import FrozenModel


class NotReady(FrozenModel):
    """Why a pod can't be entered, as the pod list says.

    Attributes:
        detail: goes on behind the pod's name.
        evidence: the cluster's own words.
        remedy: prose.
    """

    detail: str
    evidence: tuple[str, ...] = ()
    remedy: str


class KubeOptions(NodeOptions):
    """A pod and the container in which the job runs; the names are as the API server takes them (RFC 1123)."""

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    pod: str = ""
    container: str = ""
    machine: str | None = None
    not_ready: NotReady | None = None
