"""Why a host was not reached. Every way of connecting ends in one of these; the JSON keeps the same four fields.

AccessFailure             a host was not reached
├── SshUnreachable        no SSH session came about
├── SshAuthFailed         none of the keys let the user in
├── HostKeyUnknown        no known_hosts file holds the host's key
├── HostKeyChanged        a file holds another key, or revokes this one
├── PythonMissing         the interpreter is not there, or can't run the probe
├── ProbeFailed           the interpreter did not start the probe, or the probe failed
└── EngineFailure         what an engine alone knows: by the name of its diagnosis, with its own remedy
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from nccl_doctor.snapshot.values import Count, Observed, Signed, SocketPort

Reason = Literal[
    "invalid-name", "name-unresolved", "refused", "timed-out", "no-route", "unreachable", "no-banner", "dropped",
    "not-ssh", "handshake", "proxy", "forwarding", "ssh-config", "no-account", "failed",
]  # fmt: skip


PythonProblem = Literal[
    "missing", "permission", "directory", "architecture", "too-old", "incomplete", "library", "broken"
]
"""Why an interpreter can't be used."""


class SshTarget(Observed):
    """Whom ssh was to reach.

    Attributes:
        target: as it was asked for, so that ~/.ssh/config applies; ``address`` is what that means.
        jump_host: the failure is that of this jump host on the way.
    """

    target: str
    address: str
    port: SocketPort
    user: str
    jump_host: str | None = None


class UnreachableFacts(SshTarget):
    """Why no session came about."""

    reason: Reason


class LoginFacts(SshTarget):
    """What was tried to log in.

    Attributes:
        identity_file: the key whose public half should be on the host; None where there is none.
        encrypted: files that need a passphrase.
        offered: how many keys the server saw.
        methods: what the server would take.
        agent: an agent answered.
        hardware: keys were passed over that only the ssh program can use.
        barred: a key was taken, and the account then barred.
    """

    identity_file: str | None
    encrypted: tuple[str, ...]
    offered: Count
    methods: tuple[str, ...]
    agent: bool
    hardware: bool
    barred: bool = False


class UnknownKeyFacts(SshTarget):
    """The key that was shown, and where it would be known.

    Attributes:
        known_hosts_directory: the folder of the file ``known_hosts`` is there.
        via: reached through a jump host or a proxy, so that ssh-keyscan can't see it.
        known_hosts_line: the line to add, where the key itself was seen.
    """

    key_type: str
    fingerprint: str
    known_hosts: str
    known_hosts_directory: bool
    via: bool
    known_hosts_line: str | None


class ChangedKeyFacts(SshTarget):
    """The key that was shown, and the line that holds another one or revokes it."""

    file: str
    line: Count
    revoked: bool
    key_type: str
    fingerprint: str
    known_key_type: str | None
    known_fingerprint: str | None


class PythonFacts(Observed):
    """The interpreter that was asked for, and what is wrong with it."""

    python: str | None = None
    problem: PythonProblem = "missing"


class ProbeFacts(Observed):
    """Where the probe failed: connect, login, start, facts, mesh, hang; ``late`` where it was a deadline."""

    python: str | None = None
    stage: str
    late: bool = False


class AccessFailure(Observed):
    """Why a host was not reached.

    Attributes:
        kind: the name of the diagnosis.
        detail: one phrase that goes on behind the host's name: what happened.
        evidence: the lines that show it.
    """

    kind: str
    detail: str
    evidence: tuple[str, ...] = ()

    @property
    def ran_out_of_time(self) -> bool:
        """It may be the fault of a machine that had too much to do, this one above all."""
        return False

    @property
    def report_facts(self) -> dict[str, Any]:
        """The facts as a report shows them."""
        facts = getattr(self, "facts", {})
        shown = facts if isinstance(facts, dict) else facts.model_dump(mode="json")
        return {key: value for key, value in shown.items() if key != "jump_host" or value is not None}

    @property
    def ssh_target(self) -> SshTarget | None:
        """Whom ssh was to reach; None where that is not the point."""
        facts = getattr(self, "facts", None)
        return facts if isinstance(facts, SshTarget) else None


class SshUnreachable(AccessFailure):
    """No SSH session came about."""

    kind: Literal["ssh-unreachable"] = "ssh-unreachable"
    facts: UnreachableFacts

    @property
    def ran_out_of_time(self) -> bool:
        """No answer, an unfinished handshake, or a server that dropped us for it had too many others."""
        return self.facts.reason in ("timed-out", "no-banner", "dropped")


class SshAuthFailed(AccessFailure):
    """None of the keys let the user in."""

    kind: Literal["ssh-auth-failed"] = "ssh-auth-failed"
    facts: LoginFacts


class HostKeyUnknown(AccessFailure):
    """No known_hosts file holds the host's key."""

    kind: Literal["ssh-host-key-unknown"] = "ssh-host-key-unknown"
    facts: UnknownKeyFacts


class HostKeyChanged(AccessFailure):
    """A file holds another key for the host, or revokes the one that it showed."""

    kind: Literal["ssh-host-key-changed"] = "ssh-host-key-changed"
    facts: ChangedKeyFacts


class PythonMissing(AccessFailure):
    """The interpreter is not there, or is of no use."""

    kind: Literal["python-missing"] = "python-missing"
    facts: PythonFacts


class ProbeFailed(AccessFailure):
    """The interpreter did not start the probe, or the probe failed."""

    kind: Literal["probe-failed"] = "probe-failed"
    facts: ProbeFacts

    @property
    def ran_out_of_time(self) -> bool:
        """The interpreter started, and no answer came."""
        return self.facts.late


class EngineFailure(AccessFailure):
    """What an engine alone knows.

    Attributes:
        remedy: prose, for the diagnosis that ``kind`` names.
        facts: for scripts that read the report; nothing here reads them.
    """

    remedy: str
    facts: dict[str, str | Signed | float | bool | tuple[str, ...] | None] = Field(default_factory=dict)


_SSH = ("ssh-unreachable", "ssh-auth-failed", "ssh-host-key-unknown", "ssh-host-key-changed")
_OURS = (*_SSH, "python-missing", "probe-failed")


def _tag(value: Any) -> str:  # noqa: ANN401 - anything at all may stand in a snapshot
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind) if kind in _OURS else "engine"


AnyAccessFailure = Annotated[
    Annotated[SshUnreachable, Tag("ssh-unreachable")]
    | Annotated[SshAuthFailed, Tag("ssh-auth-failed")]
    | Annotated[HostKeyUnknown, Tag("ssh-host-key-unknown")]
    | Annotated[HostKeyChanged, Tag("ssh-host-key-changed")]
    | Annotated[PythonMissing, Tag("python-missing")]
    | Annotated[ProbeFailed, Tag("probe-failed")]
    | Annotated[EngineFailure, Tag("engine")],
    Discriminator(_tag),
]
"""As a snapshot holds it."""
