"""Models of failures to reach a host.

All transports report an :class:`AccessFailure`, whose fields are part of the JSON document.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, field_validator

from nccl_doctor.model.base import ClippedModel, Count, Signed, SignedSeconds, SocketPort, UserName
from nccl_doctor.model.report import DialOutcome

Reason = Literal[
    "invalid-name", "name-unresolved", "refused", "timed-out", "no-route", "unreachable", "no-banner", "dropped",
    "not-ssh", "handshake", "no-algorithm", "no-session", "stalled", "proxy", "forwarding", "ssh-config", "failed",
]  # fmt: skip


PythonProblem = Literal[  # why an interpreter can't be used
    "missing", "permission", "directory", "architecture", "too-old", "incomplete", "library", "broken", "memory"
]


class AccessFacts(ClippedModel):
    """Facts about a failure to reach a host, for checks and for scripts that read the report."""

    @property
    def ran_out_of_time(self) -> bool:
        """True if a deadline was missed.

        High load on the machine that runs nccl-doctor might be the cause of a missed deadline.
        """
        return bool(getattr(self, "late", False))


class SshTarget(AccessFacts):
    """The host to which ssh should connect."""

    target: str  # as given, so that ~/.ssh/config applies; ``address`` is what it resolves to
    address: str
    port: SocketPort
    user: UserName
    jump_host: str | None = None  # set if this jump host failed, not the target


class UnreachableFacts(SshTarget):
    """Facts about an SSH session that could not be opened."""

    reason: Reason
    via: bool = False  # dialled by a jump host or proxy, not by this machine
    late: bool = False  # this machine's own preparation took too long, such as reading the configuration
    # results of dials to its SSH port from reachable hosts
    others: dict[str, DialOutcome] = Field(default_factory=dict)

    @property
    def ran_out_of_time(self) -> bool:
        """True if a timeout occurred, or if a server with too many connections dropped the connection."""
        return self.late or self.reason in ("timed-out", "no-banner", "stalled", "dropped")


class LoginFacts(SshTarget):
    """Facts about a failed login."""

    identity_file: str | None  # the key whose public half should be on the host; None if there is none
    encrypted: tuple[str, ...]  # files that need a passphrase
    offered: Count  # number of keys offered to the server
    methods: tuple[str, ...]  # methods that the server accepts
    agent: bool  # an ssh-agent answered
    hardware: bool  # some keys were skipped because only the ssh program can use them
    barred: bool = False  # a key was accepted, then the account was refused
    partial: bool = False  # a key was accepted, but the server requires another method, too
    aborted: bool = False  # the server disconnected after its maximum number of keys (MaxAuthTries)
    exposed: tuple[str, ...] = ()  # files skipped because others may read them
    public: bool = True  # the public half of ``identity_file`` is beside it
    # expired certificates, each as a phrase; ``early``: not yet valid ones
    out_of_time: tuple[str, ...] = ()
    early: tuple[str, ...] = ()


class UnknownKeyFacts(SshTarget):
    """The unknown host key, and the file to which it could be added."""

    key_type: str
    fingerprint: str
    known_hosts: str
    known_hosts_directory: bool  # the directory of the file ``known_hosts`` exists
    via: bool  # reached through a jump host or a proxy, so that ssh-keyscan can't reach it
    known_hosts_line: str | None  # the line to add, if the key itself was seen


class ChangedKeyFacts(SshTarget):
    """The server's host key, and the line of a known_hosts file that contains a different key or revokes this key."""

    file: str
    line: Count
    revoked: bool
    key_type: str
    fingerprint: str
    known_key_type: str | None
    known_fingerprint: str | None


class PythonFacts(AccessFacts):
    """The requested Python interpreter, and the reason why it can't be used."""

    python: str | None = None
    problem: PythonProblem = "missing"


class ProbeFacts(AccessFacts):
    """Facts about a failed probe.

    Attributes:
        stage: the stage that failed, which is "connect", "login", "start", "facts", "mesh" or "hang".
        late: True if a deadline passed.
        ran: False if the "start" stage failed before the Python interpreter reported that it had started.
    """

    python: str | None = None
    stage: str
    late: bool = False
    ran: bool = True


class EngineFacts(AccessFacts):
    """Facts about a failure that is specific to an engine, such as a container runtime or Slurm.

    ``late`` is True if a deadline passed.
    """

    model_config = ConfigDict(extra="allow")
    late: bool = False
    __pydantic_extra__: dict[str, str | Signed | SignedSeconds | bool | tuple[str, ...] | None]


class AccessFailure(ClippedModel):
    """A failure to reach a host."""

    kind: str  # name of the diagnosis
    detail: str  # what happened, as a phrase to follow the host's name
    evidence: tuple[str, ...] = ()  # quoted lines that show it
    facts: AccessFacts  # each kind has its own type


class SshUnreachable(AccessFailure):
    """A failure to establish an SSH session."""

    kind: Literal["ssh-unreachable"] = "ssh-unreachable"
    facts: UnreachableFacts

    @property
    def unresolved(self) -> str | None:
        """The host's name if the failure is that this machine can't resolve the name, or None for any other failure."""
        is_direct = self.facts.jump_host is None and self.facts.target == self.facts.address
        return self.facts.target if is_direct and self.facts.reason == "name-unresolved" else None


class SshAuthFailed(AccessFailure):
    """A failed login, for example because the server accepted none of the keys."""

    kind: Literal["ssh-auth-failed"] = "ssh-auth-failed"
    facts: LoginFacts


class HostKeyUnknown(AccessFailure):
    """A failure to reach a host because no known_hosts file contains the host's key."""

    kind: Literal["ssh-host-key-unknown"] = "ssh-host-key-unknown"
    facts: UnknownKeyFacts


class HostKeyChanged(AccessFailure):
    """A failure to reach a host because a known_hosts file contains a different key or revokes the host's key."""

    kind: Literal["ssh-host-key-changed"] = "ssh-host-key-changed"
    facts: ChangedKeyFacts


class PythonMissing(AccessFailure):
    """A failure to reach a host because the Python interpreter is missing or can't run the probe."""

    kind: Literal["python-missing"] = "python-missing"
    facts: PythonFacts


class ProbeFailed(AccessFailure):
    """A failure to reach a host because the Python interpreter did not start the probe or because the probe failed."""

    kind: Literal["probe-failed"] = "probe-failed"
    facts: ProbeFacts


_Ours = SshUnreachable | SshAuthFailed | HostKeyUnknown | HostKeyChanged | PythonMissing | ProbeFailed
_OUR_KINDS = frozenset(str(failure.model_fields["kind"].default) for failure in get_args(_Ours))


class EngineFailure(AccessFailure):
    """A failure to reach a host that is specific to an engine, such as a container runtime or Slurm."""

    facts: EngineFacts = EngineFacts()
    remedy: str  # advice in prose for that diagnosis

    @field_validator("kind")
    @classmethod
    def _is_its_own(cls, kind: str) -> str:
        if kind in _OUR_KINDS:
            raise ValueError(f"{kind} has facts of its own type")
        return kind


AnyAccessFailure = Annotated[_Ours | EngineFailure, Field(union_mode="left_to_right")]  # as stored in a snapshot
