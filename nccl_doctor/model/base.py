"""Base classes of all data: immutable models, documents, validated values from hosts, and unknown facts.

Data from hosts is not trusted. Numbers and the lengths of strings are limited, strings contain no lone surrogates, and
addresses, networks, interface names and versions are validated. Validated values remain strings, so that JSON shows
what the host sent. For mypy, types such as ``IpAddress`` are distinct from ``str``, and only the validators return
values of these types.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Annotated, NewType, NoReturn, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema

from nccl_doctor import __version__

SCHEMA = 1
_COLLECTIONS = frozenset({"dict", "frozenset", "list", "set", "tuple"})
_MOST_FIELDS = 100  # more than any model has
_NO_SCHEMA = frozenset({"config", "default", "metadata", "serialization"})


def _fail_fast(schema: object, *, within: bool = False) -> None:
    """Make the validation of each collection in a model stop at the first error.

    Nested models are skipped, because their schemas have already been changed.
    """
    if isinstance(schema, (list, tuple)):
        for inner in schema:
            _fail_fast(inner, within=within)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")  # only for fields whose type is one of these names
    if within and kind == "model":
        return
    if isinstance(kind, str) and kind in _COLLECTIONS:
        schema["fail_fast"] = True
    for key, inner in schema.items():
        if key not in _NO_SCHEMA:
            _fail_fast(inner, within=within or kind == "model")


class FrozenModel(BaseModel):
    """Base class of immutable pydantic models that reject unknown fields.

    The validation of a list or an object stops at the first invalid member, because pydantic's description of an error
    uses about a hundred times as much memory as the member.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_crowd(cls, data: object) -> object:
        if isinstance(data, dict) and len(data) > _MOST_FIELDS:
            raise ValueError(f"{len(data):,} fields, of which most are unknown")
        return data

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /) -> CoreSchema:
        schema = handler(source)
        _fail_fast(handler.resolve_ref_schema(schema))
        return schema


class Document(FrozenModel):
    """Base class of the documents that commands print as JSON.

    Later versions of nccl-doctor might add fields to a document but never change existing fields.
    """

    schema_: int = Field(default=SCHEMA, alias="schema", serialization_alias="schema")
    version: str = __version__
    command: str

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


MAX_TEXT = 4096  # characters of a text without another limit: Linux' PATH_MAX

MAX_OUTPUT = 16 << 20
"""Maximum number of characters of a program's output, such as a packet filter's rules (the probe reads up to 8 MiB)."""


MAX_LINES = 64  # texts in a list: lines of evidence, methods, keys


def clip(text: str) -> str:
    """Return the string, truncated to ``MAX_TEXT`` characters and with lone surrogates replaced."""
    whole = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
    return whole if whole.isascii() else whole.encode(errors="replace").decode()


def clip_end(text: str) -> str:
    """Return the string or, if the string is longer than ``MAX_TEXT`` characters, only its end.

    The end is kept because a traceback ends with the error.
    """
    return clip(text if len(text) <= MAX_TEXT else f"…{text[1 - MAX_TEXT :]}")


def _clipped(value: object) -> object:
    if isinstance(value, str):
        return clip(value)
    return tuple(map(_clipped, value[:MAX_LINES])) if isinstance(value, (list, tuple)) else value


class Observed(FrozenModel):
    """Base class of all data from hosts. Strings have a maximum length, and numbers are finite."""

    model_config = ConfigDict(str_max_length=MAX_TEXT, allow_inf_nan=False)


class ClippedModel(Observed):
    """Base class of models that contain sentences about hosts. Overlong strings are truncated, not rejected."""

    @model_validator(mode="before")
    @classmethod
    def _cut(cls, data: object) -> object:
        return {name: _clipped(value) for name, value in data.items()} if isinstance(data, dict) else data


T = TypeVar("T")
_IpAddress = NewType("_IpAddress", str)
_IpNetwork = NewType("_IpNetwork", str)
_InterfaceName = NewType("_InterfaceName", str)
_Version = NewType("_Version", str)

# the kernel's dev_valid_name (net/core/dev.c), with an alias's ":1"; 15 bytes that are not UTF-8 take 60 characters
_INTERFACE = r"(?!\.\.?\Z)[^\s/\x00-\x1f\x7f]{1,60}"
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+_~-]{0,63}"  # letters of PEP 440 and of driver versions; never a blank or a quote
_SCOPE = re.compile(r"[0-9A-Za-z_.:-]{1,60}", re.ASCII)


@lru_cache(4096)
def ip_address(text: str) -> _IpAddress:
    """Return the string as an IP address. An IPv6 address may have a scope, as in ``fe80::1%eth0``.

    Raise ValueError if the address is invalid.
    """
    bare, percent, scope = text.partition("%")
    if percent and not _SCOPE.fullmatch(scope):
        raise ValueError("no scope of an IPv6 address")
    parsed = ipaddress.ip_address(bare)
    if percent and parsed.version == 4:
        raise ValueError("an IPv4 address has no scope")
    return _IpAddress(text)


@lru_cache(4096)
def ip_network(text: str) -> _IpNetwork:
    """Return the string as a network in CIDR notation.

    Host bits may be set, as in ``10.0.0.5/24``. Raise ValueError if the network is invalid.
    """
    ipaddress.ip_network(text, strict=False)
    return _IpNetwork(text)


@lru_cache(4096)
def _netmask(text: str) -> _IpAddress:
    bits = int(ipaddress.ip_address(text))
    width = ipaddress.ip_address(text).max_prefixlen
    inverted = bits ^ ((1 << width) - 1)
    if inverted & (inverted + 1):
        raise ValueError("no netmask: its ones do not stand together")
    return _IpAddress(text)


def _fits(pattern: str, problem: str) -> AfterValidator:
    """Return a validator that rejects every string that the pattern does not match completely.

    ``problem`` is the error message.
    """
    compiled = re.compile(pattern)

    def fit(text: T) -> T:
        if not compiled.fullmatch(str(text)):
            raise ValueError(problem)
        return text

    return AfterValidator(fit)


IpAddress = Annotated[_IpAddress, Field(max_length=128), AfterValidator(ip_address)]
"""An IP address as text, such as "10.0.0.1" or "fe80::1%eth0"."""
IpNetwork = Annotated[_IpNetwork, Field(max_length=64), AfterValidator(ip_network)]  # as text: "10.0.0.0/24"
Netmask = Annotated[_IpAddress, Field(max_length=64), AfterValidator(_netmask)]
"""A netmask as text, such as "255.255.255.0" or "ffff:ffff:ffff:ffff::"."""
InterfaceName = Annotated[_InterfaceName, Field(max_length=60), _fits(_INTERFACE, "no name of a network interface")]
"""A network interface's name, or the label of an alias such as "eth0:1"."""
Version = Annotated[_Version, Field(max_length=64), _fits(_VERSION, "no version")]
"""The version of a program, such as "2.13.0+cu126", "2.28.9" or "550.54.14"."""
HostPath = Annotated[
    str, Field(max_length=MAX_TEXT), _fits(r"[^\0]*", "a path has no NUL")
]  # path of a file on the host
EnvValue = Annotated[str, Field(max_length=128 << 10)]  # value of a variable: execve(2) allows 128 KiB (MAX_ARG_STRLEN)


class Holds(Enum):
    """Kinds of personal or secret data in fields, for the redaction of snapshots.

    Fields without a :class:`Holds` annotation are free text, from which user names and probable secrets are removed.
    """

    USER = "the name of a user"
    COMMAND = "a command line of a process"
    LAUNCH_LINE = "a line that starts a job"
    ENVIRONMENT = "values of variables, by their names"
    CONFIGURATION = "lines that set variables"
    ACCESS = "what leads to a host: options of engines and of ssh"
    RULES = "a language of its own, in which no word is a user's name"


@dataclass(frozen=True)
class Fleeting:
    """Annotation of a field whose value differs in every snapshot.

    The comparison of two snapshots ignores fields with this annotation.
    """


@dataclass(frozen=True)
class OpenList:
    """Annotation of a fact that is a list to which any local user can add items.

    ``item`` is the type of the list's items.
    """

    item: type[BaseModel]


Mark = TypeVar("Mark")


@cache
def marks(model: type[BaseModel], kind: type[Mark]) -> dict[str, Mark]:
    """Return a model's annotations of type ``kind``, keyed by field name.

    Annotations inside the types of fields are included.
    """
    by_field = {name: _mark(kind, field.annotation, field.metadata) for name, field in model.model_fields.items()}
    return {name: mark for name, mark in by_field.items() if mark is not None}


def _mark(kind: type[Mark], annotation: object, metadata: Iterable[object] = ()) -> Mark | None:
    direct_mark = next((item for item in metadata if isinstance(item, kind)), None)
    parts = () if direct_mark is not None or isinstance(annotation, type) else get_args(annotation)
    inner = (_mark(kind, part, getattr(part, "__metadata__", ())) for part in parts)
    return direct_mark or next((mark for mark in inner if mark is not None), None)


@dataclass(frozen=True)
class Subjects:
    """Annotation of a fact whose value is a list of objects that some checks examine.

    If the list is empty on all hosts, these checks are skipped for the reason ``absent``.
    """

    absent: str


UserName = Annotated[str, Holds.USER]
CommandLine = Annotated[str, Holds.COMMAND]
HostAddress = Annotated[str, Field(pattern=r"^[0-9A-Za-z_:][0-9A-Za-z_.:%-]{0,254}$")]
"""An address or a name of a host, as in the hosts file."""
CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
"""Pattern of the names and IDs of docker, podman and nerdctl containers, and of the names of apptainer instances."""
ContainerName = Annotated[str, Field(pattern=rf"^{CONTAINER_NAME.pattern}$")]
Clipped = Annotated[str, BeforeValidator(_clipped)]  # a sentence whose end may be missing
ClippedEnd = Annotated[str, BeforeValidator(lambda text: clip_end(text) if isinstance(text, str) else text)]
"""A string whose beginning might have been cut off."""
Output = Annotated[str, Field(max_length=MAX_OUTPUT)]  # the complete output of another program; hostile text
Port = Annotated[int, Field(ge=1, le=65535)]  # a TCP port that can be dialled
SocketPort = Annotated[int, Field(ge=0, le=65535)]  # a port in a socket table: 0 for a socket that is not bound
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A non-negative count, size, or index.

The maximum is large enough for the size of any memory in bytes.
"""
Pid = Annotated[
    int, Field(ge=0, le=2**31 - 1), Fleeting()
]  # 0 for a process outside the PID namespace of whoever reports it
SysctlNumber = Annotated[str, Field(pattern=r"^-?[0-9]{1,19}$")]
"""A numeric kernel setting, as printed by a file in /proc/sys."""
ProcessState = Annotated[str, Field(pattern=r"^[A-Za-z]( [^ ]{1,64})?$")]
"""A process state as in proc(5), such as "S".

An uninterruptible state can be followed by the kernel function in which the process waits, as in "D nfs_wait".
"""
Signed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]  # an integer that may be negative
Seconds = Annotated[float, Field(ge=0, le=1e12)]
"""A duration or Unix time in seconds, limited so that its square and its product with a size fit in a float."""
SignedSeconds = Annotated[float, Field(ge=-1e12, le=1e12)]  # difference between two clocks
Rate = Annotated[float, Field(ge=0, le=1e12)]  # GB/s, 10⁹ bytes per second


MALFORMED = "malformed: "  # beginning of the reason if a host's answer has the wrong type
PENDING = "not reached"  # reason for a phase that had not begun when the run ended
NOT_ASKED = "not requested"  # beginning of the reason if a phase was not requested
NOT_SELECTED = "not selected"
"""The reason given for a check that the user did not select. A row of the terminal output is omitted if none of its
checks was selected.
"""


class Unknown(Observed):
    """A fact that could not be determined, e.g. because of a missing permission, a missing tool, or a timeout."""

    # tried on every fact: otherwise each key of a known fact would be an error
    model_config = ConfigDict(extra="ignore")

    reason: Clipped = Field(alias="$unknown")  # a phrase to follow "unknown: "
    traceback: ClippedEnd | None = None  # traceback of a collector that crashed

    @property
    def malformed(self) -> bool:
        return self.reason.startswith(MALFORMED)

    @property
    def late(self) -> bool:
        """True if the fact is unknown only because a time limit was exceeded."""
        return "no answer in " in self.reason

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unknown fact is neither true nor false: {self.reason}")


class Skipped(Observed):
    """A fact that was not requested or does not apply. A skipped fact does not make the result incomplete."""

    model_config = ConfigDict(extra="ignore")

    reason: Clipped = Field(alias="$skipped")

    @property
    def hindered(self) -> bool:
        """True if the fact was skipped because of an earlier fault."""
        return self.reason != PENDING and not self.reason.startswith(NOT_ASKED)


def unknown(reason: str, traceback: str | None = None) -> Unknown:
    return Unknown.model_validate({"$unknown": reason, "traceback": traceback})


def skipped(reason: str) -> Skipped:
    return Skipped.model_validate({"$skipped": reason})


def known(fact: Unknown | Skipped | T) -> T:
    """Return a fact that a check declares in ``needs`` and that is therefore known.

    Raise TypeError if the fact is unknown or was skipped.
    """
    if isinstance(fact, (Unknown, Skipped)):
        raise TypeError(f"not among the needs: {fact.reason}")
    return fact


Fact = Annotated[Unknown | T, Field(union_mode="left_to_right")]


Phased = Annotated[Unknown | Skipped | T, Field(union_mode="left_to_right")]
