"""Defines types for responses of the Kubernetes API, with only the fields that are used.

Names must conform to RFC 1123, so that they can safely be used in shell commands. A response with an unexpected
structure raises an error with a one-sentence message. Services, NetworkPolicies and namespace labels that can't be
read, for example without permission, are Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from nccl_doctor.errors import UsageError
from nccl_doctor.model.base import IpAddress, Unknown, unknown
from nccl_doctor.snapshot.surroundings import Peer, Policy, PolicyPort, PolicyRule, Selector, Service
from nccl_doctor.text.hostlist import quoted
from nccl_doctor.transport.kube.kubectl import KubectlError, kubectl

KubeName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
Text = Annotated[str, Field(max_length=4096)]
Long = Annotated[str, Field(max_length=256 << 10)]  # an annotation; all of a pod together have at most 256 KiB

T = TypeVar("T")


class ApiObject(BaseModel):
    """Base class of all API objects. A null counts as a missing field, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class _Owner(ApiObject):
    kind: Text = ""
    name: KubeName
    controller: bool = False


class _Metadata(ApiObject):
    name: KubeName
    namespace: KubeName = "default"
    labels: dict[Text, Text] = Field(default_factory=dict)
    annotations: dict[Text, Long] = Field(default_factory=dict)
    owners: tuple[_Owner, ...] = Field(default=(), alias="ownerReferences")
    created: AwareDatetime = Field(default=datetime.fromtimestamp(0, timezone.utc), alias="creationTimestamp")
    deleted: AwareDatetime | None = Field(default=None, alias="deletionTimestamp")


class _Variable(ApiObject):
    name: Text
    value: Long | None = None


class _Mount(ApiObject):
    name: Text
    path: Text = Field(alias="mountPath")


class _Resources(ApiObject):
    limits: dict[Text, str | int | float] = Field(default_factory=dict)
    requests: dict[Text, str | int | float] = Field(default_factory=dict)


class _Capabilities(ApiObject):
    add: tuple[Text, ...] = ()


class _SecurityContext(ApiObject):
    privileged: bool = False
    capabilities: _Capabilities = _Capabilities()


class _ContainerPort(ApiObject):
    name: Text = ""
    number: Annotated[int, Field(ge=1, le=65535)] = Field(alias="containerPort")
    protocol: Text = "TCP"


class Container(ApiObject):
    """A container of a pod."""

    name: KubeName
    env: tuple[_Variable, ...] = ()
    mounts: tuple[_Mount, ...] = Field(default=(), alias="volumeMounts")
    resources: _Resources = _Resources()
    security: _SecurityContext = Field(default=_SecurityContext(), alias="securityContext")
    ports: tuple[_ContainerPort, ...] = ()


class _EmptyDir(ApiObject):
    limit: str | int | None = Field(default=None, alias="sizeLimit")


class _Volume(ApiObject):
    name: Text
    empty_dir: _EmptyDir | None = Field(default=None, alias="emptyDir")


class _PodSpec(ApiObject):
    node: Text | None = Field(default=None, alias="nodeName")
    hostname: Text = ""
    subdomain: Text = ""
    host_network: bool = Field(default=False, alias="hostNetwork")
    containers: Annotated[tuple[Container, ...], Field(min_length=1)]
    init_containers: tuple[Container, ...] = Field(default=(), alias="initContainers")
    volumes: tuple[_Volume, ...] = ()


class _Condition(ApiObject):
    type: Text
    status: Text
    reason: Text = ""
    message: Long = ""


class StateDetail(ApiObject):
    """The reason why a container is waiting or has terminated."""

    reason: Text = ""
    message: Long = ""
    exit_code: int | None = Field(default=None, alias="exitCode")


class ContainerState(ApiObject):
    """The state of a container: waiting, running or terminated."""

    running: dict[str, Any] | None = None
    waiting: StateDetail | None = None
    terminated: StateDetail | None = None


class _ContainerStatus(ApiObject):
    name: KubeName
    ready: bool = False
    state: ContainerState = ContainerState()


class _PodIp(ApiObject):
    ip: IpAddress


class _PodStatus(ApiObject):
    phase: Text = "Unknown"
    reason: Text = ""
    message: Long = ""
    pod_ip: IpAddress | None = Field(default=None, alias="podIP")
    pod_ips: tuple[_PodIp, ...] = Field(default=(), alias="podIPs")
    conditions: tuple[_Condition, ...] = ()
    containers: tuple[_ContainerStatus, ...] = Field(default=(), alias="containerStatuses")
    init_containers: tuple[_ContainerStatus, ...] = Field(default=(), alias="initContainerStatuses")


class Pod(ApiObject):
    """A pod in a response from the Kubernetes API."""

    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus = _PodStatus()

    @property
    def owner(self) -> _Owner | None:
        return next((owner for owner in self.metadata.owners if owner.controller), None)


class PodList(ApiObject):
    """The output of ``kubectl get pods -o json``."""

    items: tuple[Pod, ...] = ()


POD_LIST = TypeAdapter(PodList)


def typed(kind: TypeAdapter[T], answer: bytes, what: str) -> T:
    """Parse a response of the Kubernetes API, or raise a UsageError that names the first invalid field."""
    try:
        return kind.validate_python(from_json(answer, allow_inf_nan=False))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = quoted(".".join(map(str, fault["loc"])) or "answer", 120)
        raise UsageError(f"--kube: what kubectl printed is not a {what}: {where}: {fault['msg']}") from error
    except ValueError as error:
        raise UsageError(f"--kube: what kubectl printed is not a {what}: damaged JSON, {error}") from error


Typed = TypeVar("Typed")
SECONDS = 15.0


class _ServiceSpec(ApiObject):
    cluster_ip: Text = Field(default="", alias="clusterIP")
    selector: dict[Text, Text] = Field(default_factory=dict)
    early: bool = Field(default=False, alias="publishNotReadyAddresses")


class _Service(ApiObject):
    metadata: _Metadata
    spec: _ServiceSpec


class _Rule(ApiObject):
    sources: tuple[Peer, ...] = Field(default=(), alias="from")
    targets: tuple[Peer, ...] = Field(default=(), alias="to")
    ports: tuple[PolicyPort, ...] = ()


class _PolicySpec(ApiObject):
    pods: Selector = Field(default=Selector(), alias="podSelector")
    ingress: tuple[_Rule, ...] = ()
    egress: tuple[_Rule, ...] | None = None
    types: tuple[Text, ...] = Field(default=(), alias="policyTypes")


class _Policy(ApiObject):
    metadata: _Metadata
    spec: _PolicySpec


class _Namespace(ApiObject):
    metadata: _Metadata


class _List(ApiObject, Generic[T]):
    items: tuple[T, ...] = ()


def _services(answer: bytes) -> tuple[Service, ...]:
    listed = typed(TypeAdapter(_List[_Service]), answer, "list of services").items
    services = []
    for service in listed:
        name, spec, headless = service.metadata.name, service.spec, service.spec.cluster_ip == "None"
        services.append(Service(name=name, headless=headless, selector=spec.selector, early=spec.early))
    return tuple(services)


def _policies(answer: bytes) -> tuple[Policy, ...]:
    return tuple(map(_policy, typed(TypeAdapter(_List[_Policy]), answer, "list of network policies").items))


def _labels(answer: bytes) -> dict[str, str]:
    return typed(TypeAdapter(_Namespace), answer, "namespace").metadata.labels


def read_namespace(namespace: str) -> dict[str, Any]:
    """Query a namespace, and return values for fields of :class:`~nccl_doctor.snapshot.surroundings.KubeFacts`."""
    within = ("-n", namespace)
    with ThreadPoolExecutor(3) as pool:
        answers: dict[str, Future[Any]] = {
            "services": pool.submit(_asked, _services, "list services", namespace, "services", *within),
            "policies": pool.submit(_asked, _policies, "list networkpolicies", namespace, "networkpolicies", *within),
            "namespace_labels": pool.submit(_asked, _labels, "get namespaces", namespace, "namespace", namespace),
        }
    return {name: answer.result() for name, answer in answers.items()}


def _asked(read: Callable[[bytes], Typed], right: str, namespace: str, *arguments: str) -> Typed | Unknown:
    what = right.partition(" ")[2]
    try:
        return read(kubectl("get", *arguments, "-o", "json", seconds=SECONDS))
    except TimeoutError:
        return unknown(f"the API server did not return the {what} within {SECONDS:.0f} s")
    except KubectlError as error:
        no = f"you are not allowed to {right} (kubectl auth can-i {right} -n {namespace})"
        return unknown(no if error.trouble == "forbidden" else f"{what}: {error.last}")
    except UsageError as error:
        return unknown(str(error))


def _policy(policy: _Policy) -> Policy:
    """Convert a policy.

    A NetworkPolicy without ``policyTypes`` has the type Ingress, and also the type Egress if ``egress`` is set.
    """
    spec = policy.spec
    types = spec.types or ("Ingress", *(("Egress",) if spec.egress is not None else ()))
    inwards = tuple(PolicyRule(peers=rule.sources, ports=rule.ports) for rule in spec.ingress)
    outwards = tuple(PolicyRule(peers=rule.targets, ports=rule.ports) for rule in spec.egress or ())
    return Policy(
        name=policy.metadata.name,
        pods=spec.pods,
        ingress=inwards if "Ingress" in types else None,
        egress=outwards if "Egress" in types else None,
    )
