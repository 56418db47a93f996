"""What a cluster's API tells of the pods of a job; of each what the judgement of its host hangs on."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.snapshot.policies import Policy, Service
from nccl_doctor.snapshot.unknown import Fact, unknown
from nccl_doctor.snapshot.values import Count, IpAddress, Observed


class PodFacts(Observed):
    """One pod, as its list has it.

    Attributes:
        container: where the probe ran.
        machine: the node under it; None where it has none yet.
        unready: why the cluster calls it not ready though its container runs; None where it is ready.
        networks: those that Multus gave it besides its own.
        shm_bytes: the bound of an ``emptyDir`` at /dev/shm; None where it has no bound. ``shm_volume`` is its name,
            empty where none is mounted there.
        devices: what its container may use of ``nvidia.com/gpu``, ``rdma/…`` and the like.
        capabilities: what was added to its root's; ``privileged`` means all.
        containers: all that run in it, sidecars among them.
        ports: those of its containers that have a name, for policies.
        variables: names of those that its container's spec sets: the job's own, by its controller or its author.
    """

    pod: str
    namespace: str
    container: str
    machine: str | None = None
    owner: str = ""
    unready: str | None = None
    host_network: bool = False
    networks: tuple[str, ...] = ()
    shm_volume: str = ""
    shm_bytes: Count | None = None
    devices: dict[str, Count] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    containers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    addresses: tuple[IpAddress, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    ports: dict[str, Count] = Field(default_factory=dict)
    variables: tuple[str, ...] = ()


class KubeFacts(NodeOptions):
    """What is known of all pods together.

    Attributes:
        asked: the words of the command line that chose them.
        pods: by node's name.
        services: of their namespace, as ``policies`` and ``namespace_labels``.
    """

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    asked: tuple[str, ...] = ()
    pods: dict[str, PodFacts] = Field(default_factory=dict)
    services: Fact[tuple[Service, ...]] = unknown("not asked")
    policies: Fact[tuple[Policy, ...]] = unknown("not asked")
    namespace_labels: Fact[dict[str, str]] = unknown("not asked")
