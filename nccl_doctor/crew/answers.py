"""Defines types for a probe's answers, so that no answer is passed on as a plain list or dict.

An answer that does not match its type raises :class:`MalformedError`, and further answers from the host are ignored.
The facts about a host are validated one by one in :mod:`nccl_doctor.collect.facts.host_facts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from nccl_doctor.errors import DoctorError, describe
from nccl_doctor.model import base
from nccl_doctor.model.report import DialOutcome, DialSeconds, ErrorKind, Growth, MachineLoad, Reported, SizeReport
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.network import FirewallFacts, PortTrial, Resolution, Way
from nccl_doctor.snapshot.rate import Figures, RateLink
from nccl_doctor.text.machine import out_of_threads
from nccl_doctor.transport.base import AccessError

T = TypeVar("T")

MAX_ITEMS = 150_000
"""Maximum number of values in an answer.

The maximum is four times the number of values in the facts about one host of a cluster with 4,096 hosts.
"""
_REASON = 300  # characters of the reason why a part of an answer is invalid: it may quote that part
_SEPARATORS = (b",", b"[", b"{")
_TOKEN = re.compile(rb'"[^"]*"?|[,\[{]')  # a JSON text without escapes, and the separators around each value


class ProbeError(Exception):
    """Error raised if the probe exits, does not answer in time, or answers with an error."""

    def __init__(self, message: str, traceback: str | None = None) -> None:
        self.traceback = traceback
        super().__init__(base.clip(message))


class NoAnswerError(ProbeError):
    """Error raised if the deadline passes before the answer arrives."""


class ConnectionLostError(ProbeError):
    """Error raised if the connection breaks, so that the host can no longer answer.

    ``failure`` is the reason for the broken connection, or None if the reason is unknown.
    """

    failure: AnyAccessFailure | None = None


class HeartbeatLostError(ConnectionLostError):
    """Error raised if a probe ended because it received no heartbeat from this machine for ``seconds`` seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the connection stalled: it heard nothing from this machine for {seconds:.0f} s")


class ControllerPausedError(ConnectionLostError):
    """Error raised if this machine sent no heartbeats for so long that the hosts ended their probes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"this machine was unresponsive for {seconds:.0f} s (asleep, suspended or overloaded), and the hosts ended "
            "what they ran for nccl-doctor meanwhile"
        )


class MalformedError(ConnectionLostError):
    """Error raised if a host sends an answer that a real probe never sends.

    Further answers from the host are ignored.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"it answered what the probe never says: {what}")


class OwnFaultError(ConnectionLostError):
    """Error raised if a host's answer triggers a bug in nccl-doctor."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(f"nccl-doctor itself failed over what it answered, please report this: {describe(fault)}")


def attempt(work: Callable[[], T]) -> T:
    """Call ``work``, which processes a host's answer, and raise OwnFaultError for any unexpected exception."""
    try:
        return work()
    except (ProbeError, AccessError, DoctorError):
        raise
    except Exception as fault:
        if out_of_threads(fault):
            raise
        raise OwnFaultError(fault) from fault


class Hello(base.Observed):
    """The message that a probe sends when it has started."""

    python: base.Version
    machine: str
    pid: base.Pid
    load: MachineLoad | None = None


class Listening(base.Observed):
    """The ports of the requested listeners, in the order of the request.

    A port is None if the listener failed, and ``errors`` maps the index of the listener to the error.
    """

    ports: tuple[base.Port | None, ...]
    errors: dict[str, base.Clipped]


class DialRow(NamedTuple):
    """A failed connection attempt, with ``target`` as an index into the list of targets."""

    target: base.Count
    port: base.Port
    outcome: DialOutcome
    error: base.Clipped | None
    seconds: DialSeconds | None
    source_port: base.Port | None = None


class TripRow(NamedTuple):
    """A target that was reached, with the shortest round-trip time in µs and the number of retransmitted segments."""

    target: base.Count
    rtt_us: base.Count
    again: base.Count


class Dialled(base.Observed):
    """The outcomes of all connection attempts that a host made."""

    connected: base.Count
    failed: tuple[DialRow, ...]
    trips: tuple[TripRow, ...] = ()


class Accepted(NamedTuple):
    """The number of connections that a listener accepted from one peer, which might be the host itself."""

    address: base.HostAddress
    port: base.Port
    peer: base.HostAddress
    connections: base.Count


class Heard(base.Observed):
    """All connections that a host's listeners accepted.

    ``crowds`` pairs each peer with the number of times that a new connection replaced the peer's oldest connection.
    """

    accepted: Annotated[tuple[Accepted, ...], Field(max_length=4096)] = ()
    crowds: Annotated[tuple[tuple[base.HostAddress, base.Count], ...], Field(max_length=4096)] = ()


class PathMtuResult(base.Observed):
    """The outcome of sending full-size packets to a target (probe/mesh/mesh.py)."""

    outcome: Literal["passed", "stalled", "reset", "not-connected"]
    sent: base.Count
    unacked: base.Count
    segment: base.Count
    error: base.Clipped | None


class NoRate(base.Observed):
    """The error that ended a throughput measurement, as the symbolic name of the errno."""

    error: base.Clipped


class RankEvent(base.Observed):
    """A report from a rank, or from the probe about a rank (worker.py and allreduce.py in probe/smoke)."""

    local_rank: base.Count
    since: base.Seconds = 0.0
    stage: Reported | None = None
    error: base.Clipped | None = None
    error_kind: ErrorKind | None = None
    pid: base.Pid | None = None
    torch: base.Version | None = None
    nccl: base.Version | None = None
    state: base.ProcessState | None = None
    stack: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    exit_code: Annotated[int, Field(ge=-128, le=255)] | None = None
    own_s: base.SignedSeconds | None = None
    busy: base.SignedSeconds | None = None
    working: base.Seconds | None = None
    size: SizeReport | None = None
    wrong_group: Annotated[tuple[base.Count, ...], Field(min_length=1, max_length=2)] | None = None


class SmokeEnd(base.Observed):
    """The result of the all-reduce on a host.

    ``exit`` is 0 if all ranks succeeded and 1 if a rank failed. If the launcher exited before the ranks, ``exit`` is
    the launcher's exit status. ``broken`` is the reason why the host returned no result, or None.
    """

    exit: base.Signed | None = None
    signal: Annotated[int, Field(ge=1, le=128)] | None = None
    timed_out: bool = False
    output: tuple[str, ...] = ()
    broken: base.Clipped | None = None
    counters: Growth | None = None  # of RDMA ports; None without any, or if they were not counted


class TrialEnd(base.Observed):
    """The outcome of an all-reduce among a group of ranks, as reported by the group's ranks on one host."""

    model_config = ConfigDict(extra="ignore")

    ok: bool


class HolderAnswer(base.Observed):
    """The nccl-doctor run that has the exclusive right to test a host, as described by that run.

    ``user`` is the only field that comes from the kernel, and is empty if the kernel does not provide a user.
    """

    user: base.Clipped
    run: base.Clipped = ""
    began: base.Seconds = 0.0  # by the clock of its controller
    controller: base.Clipped = ""
    held_s: base.Seconds = 0.0


class TurnAnswer(base.Observed):
    """The other run that is testing the host, and the result of trying the master port again (each can be None)."""

    holder: HolderAnswer | None
    trial: PortTrial | None


class FirewallAgain(base.Observed):
    """The current firewall rules."""

    firewall: base.Fact[FirewallFacts]


@dataclass(frozen=True)
class Contract(Generic[T]):
    """A request to the probe: its name in ``REQUESTS`` (probe/main.py) and the type of its answer."""

    name: str
    answer: TypeAdapter[T]


_NOTHING: TypeAdapter[None] = TypeAdapter(None)

FACTS: Contract[dict[str, Any]] = Contract("facts", TypeAdapter(dict[str, Any]))
CLOCK: Contract[float] = Contract("clock", TypeAdapter(base.SignedSeconds))
FIREWALL = Contract("firewall", TypeAdapter(FirewallAgain))
RESOLVE = Contract("resolve", TypeAdapter(Annotated[dict[str, Resolution], Field(max_length=8)]))
LISTEN = Contract("listen", TypeAdapter(Listening))
DIAL = Contract("dial", TypeAdapter(Dialled))
UNLISTEN: Contract[Heard | None] = Contract("unlisten", TypeAdapter(Heard | None))
WAYS = Contract("ways", TypeAdapter(tuple[Way, ...]))
PATH_MTU = Contract("path_mtu", TypeAdapter(tuple[PathMtuResult, ...]))
RATE: Contract[Figures | NoRate] = Contract("rate", TypeAdapter(Figures | NoRate))
LINKS = Contract("links", TypeAdapter(tuple[RateLink, ...]))
TURN = Contract("turn", TypeAdapter(TurnAnswer))
END_TURN = Contract("end_turn", _NOTHING)
IMPORT_TORCH = Contract("import_torch", _NOTHING)
SMOKE = Contract("smoke", TypeAdapter(SmokeEnd))
FREE_PORT: Contract[int] = Contract("free_port", TypeAdapter(Annotated[int, Field(ge=1024, le=65535)]))
PREPARE_TRIALS = Contract("prepare_trials", _NOTHING)
TRIAL = Contract("trial", TypeAdapter(TrialEnd))
END_LAUNCHER = Contract("end_launcher", _NOTHING)
STOP = Contract("stop", _NOTHING)  # ends the all-reduce; its own answer comes, and none to this

HELLO = TypeAdapter(Hello)
RANK_EVENT = TypeAdapter(RankEvent)
WORDS: TypeAdapter[str] = TypeAdapter(base.Clipped)
TRACEBACK: TypeAdapter[str | None] = TypeAdapter(base.ClippedEnd | None)


def parsed(text: bytes) -> dict[str, Any]:
    """Parse a line from the probe as a JSON object; raise MalformedError if it is invalid or has too many values."""
    if sum(map(text.count, _SEPARATORS)) > MAX_ITEMS:
        values = texts = 0  # separators within texts don't count
        for token in _TOKEN.finditer(text.replace(b"\\\\", b"").replace(b'\\"', b"")):
            if token[0] in _SEPARATORS:
                values += 1
            else:
                texts += 1
            if values > MAX_ITEMS or texts > 2 * MAX_ITEMS:
                raise MalformedError(f"more than {MAX_ITEMS} values")
    try:
        message = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedError(f"damaged JSON, {error}") from error
    if not isinstance(message, dict):
        raise MalformedError("no JSON object")
    return message


def typed(kind: TypeAdapter[T], what: str, value: object) -> T:
    """Validate a part of an answer; raise MalformedError if the value does not have the expected type."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise MalformedError(f"{what}: {next(iter(problems(error).values()))}") from error


def typed_items(kind: TypeAdapter[T], values: list[Any]) -> tuple[tuple[T, ...], str | None]:
    """Validate a list item by item, because a local user of the host can insert invalid items.

    Return the valid items, and a phrase with the number of invalid items and the first error. The phrase is None if all
    items are valid.
    """
    fitting: list[T] = []
    reasons: list[str] = []
    for place, value in enumerate(values):
        try:
            fitting.append(kind.validate_python(value))
        except ValidationError as error:
            reasons.append(f"{place}.{next(iter(problems(error).values()))}")
    return tuple(fitting), f"{len(reasons)} of {len(values)} left out: {reasons[0]}" if reasons else None


def problems(error: ValidationError) -> dict[str, str]:
    """Return a dict that maps the name or index of each invalid part of a value to the first error in that part."""
    messages: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        part, *where = map(str, fault["loc"] or ("answer",))
        if where[:1] not in (["Unknown"], ["Skipped"]):  # the position within the known fact tells more
            place = ".".join(word for word in (part, *where) if word.islower() or word.isdigit())[:80]
            messages.setdefault(part, f"{place or part}: {fault['msg'][:_REASON]}")
    return messages
