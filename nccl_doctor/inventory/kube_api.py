"""What the Kubernetes API answers, as types: of each object the fields that are used, and nothing that is not one.

Names are RFC 1123's, so that they are safe in a command; an answer of another shape ends in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from nccl_doctor.errors import UsageError
from nccl_doctor.model.base import IpAddress
from nccl_doctor.text.hostlist import quoted

Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
Text = Annotated[str, Field(max_length=4096)]
Long = Annotated[str, Field(max_length=256 << 10)]
"""Of an annotation: all of a pod's together are 256 KiB at most."""

T = TypeVar("T")


class Seen(BaseModel):
    """Base of all: what is null is as if it were not there, and unknown fields are nobody's business."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:  # noqa: ANN401 - whatever stands there
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class Owner(Seen):
    """Who made an object."""

    kind: Text = ""
    name: Name
    controller: bool = False


class Metadata(Seen):
    """What every object has."""

    name: Name
    namespace: Name = "default"
    labels: dict[Text, Text] = Field(default_factory=dict)
    annotations: dict[Text, Long] = Field(default_factory=dict)
    owners: tuple[Owner, ...] = Field(default=(), alias="ownerReferences")
    created: AwareDatetime = Field(
        default=datetime.fromisoformat("1970-01-01T00:00:00+00:00"), alias="creationTimestamp"
    )
    deleted: AwareDatetime | None = Field(default=None, alias="deletionTimestamp")


class Variable(Seen):
    """An environment variable; ``value`` None where it comes from elsewhere (``valueFrom``)."""

    name: Text
    value: Long | None = None


class Mount(Seen):
    """Where a volume stands in a container."""

    name: Text
    path: Text = Field(alias="mountPath")


class Resources(Seen):
    """What a container asks for and may use, as quantities."""

    limits: dict[Text, str | int | float] = Field(default_factory=dict)
    requests: dict[Text, str | int | float] = Field(default_factory=dict)


class Capabilities(Seen):
    """Of a container's root."""

    add: tuple[Text, ...] = ()


class SecurityContext(Seen):
    """What a container may do."""

    privileged: bool = False
    capabilities: Capabilities = Capabilities()


class ContainerPort(Seen):
    """A port that has a name, for policies."""

    name: Text = ""
    number: Annotated[int, Field(ge=1, le=65535)] = Field(alias="containerPort")
    protocol: Text = "TCP"


class Container(Seen):
    """One of a pod."""

    name: Name
    env: tuple[Variable, ...] = ()
    mounts: tuple[Mount, ...] = Field(default=(), alias="volumeMounts")
    resources: Resources = Resources()
    security: SecurityContext = Field(default=SecurityContext(), alias="securityContext")
    ports: tuple[ContainerPort, ...] = ()


class EmptyDir(Seen):
    """A volume of the pod's own."""

    limit: str | int | None = Field(default=None, alias="sizeLimit")


class Volume(Seen):
    """Of a pod; ``empty_dir`` None where it is another kind."""

    name: Text
    empty_dir: EmptyDir | None = Field(default=None, alias="emptyDir")


class PodSpec(Seen):
    """What a pod is to be."""

    node: Text | None = Field(default=None, alias="nodeName")
    hostname: Text = ""
    subdomain: Text = ""
    host_network: bool = Field(default=False, alias="hostNetwork")
    containers: Annotated[tuple[Container, ...], Field(min_length=1)]
    init_containers: tuple[Container, ...] = Field(default=(), alias="initContainers")
    volumes: tuple[Volume, ...] = ()


class Condition(Seen):
    """One of a pod's."""

    type: Text
    status: Text
    reason: Text = ""
    message: Long = ""


class StateDetail(Seen):
    """Why a container waits or has ended."""

    reason: Text = ""
    message: Long = ""
    exit_code: int | None = Field(default=None, alias="exitCode")


class State(Seen):
    """Of a container: one of three."""

    running: dict[str, Any] | None = None
    waiting: StateDetail | None = None
    terminated: StateDetail | None = None


class ContainerStatus(Seen):
    """How a container is."""

    name: Name
    ready: bool = False
    state: State = State()


class PodIp(Seen):
    """An address of a pod."""

    ip: IpAddress


class PodStatus(Seen):
    """How a pod is."""

    phase: Text = "Unknown"
    reason: Text = ""
    message: Long = ""
    pod_ip: IpAddress | None = Field(default=None, alias="podIP")
    pod_ips: tuple[PodIp, ...] = Field(default=(), alias="podIPs")
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerStatus, ...] = Field(default=(), alias="containerStatuses")
    init_containers: tuple[ContainerStatus, ...] = Field(default=(), alias="initContainerStatuses")


class Pod(Seen):
    """One pod of the list."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def owner(self) -> Owner | None:
        """The controller that made it."""
        return next((one for one in self.metadata.owners if one.controller), None)


class PodList(Seen):
    """The answer to ``kubectl get pods -o json``."""

    items: tuple[Pod, ...] = ()


POD_LIST = TypeAdapter(PodList)


def typed(kind: TypeAdapter[T], answer: bytes, what: str) -> T:
    """An answer of the API as its type.

    Raises:
        UsageError: it is none; the sentence names the field.
    """
    try:
        return kind.validate_python(from_json(answer, allow_inf_nan=False))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = quoted(".".join(map(str, fault["loc"])) or "answer", 120)
        raise UsageError(f"--kube: what kubectl printed is no {what}: {where}: {fault['msg']}") from error
    except ValueError as error:
        raise UsageError(f"--kube: what kubectl printed is no {what}: damaged JSON, {error}") from error
