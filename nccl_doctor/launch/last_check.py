"""What the last check of a list of hosts came to, kept on this machine for ``launch``.

One small file for each hosts file, or list of names without one, under ``$XDG_STATE_HOME/nccl-doctor`` (XDG Base
Directory Specification). It holds host names, counts and recommended variables, and is readable by its owner alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from nccl_doctor.launch.plan import CheckedHost
from nccl_doctor.model.base import FrozenModel, Version
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import Diagnosis, Report
from nccl_doctor.nccl.versions import release
from nccl_doctor.snapshot import Snapshot, TorchInfo, Unknown
from nccl_doctor.snapshot.ranks import counts
from nccl_doctor.text import shell
from nccl_doctor.text.files import write_atomically
from nccl_doctor.text.hostlist import fold

OLD_S = 86_400.0


class HostSeen(FrozenModel):
    """One host, as :class:`~nccl_doctor.launch.plan.CheckedHost`."""

    nproc: int
    gpus: int | None
    variables: dict[str, str] = Field(default_factory=dict)


class LastCheck(FrozenModel):
    """A check that was made.

    Attributes:
        digest: SHA-256 of the hosts file then, or of the names.
        taken_at: seconds since 1970-01-01 UTC.
        errors: names of the diagnoses of severity error, each with its hosts.
    """

    digest: str
    taken_at: float
    complete: bool
    errors: tuple[str, ...]
    torch: Version | None
    hosts: dict[str, HostSeen]

    @property
    def seen(self) -> dict[str, CheckedHost]:
        """By name, what of each host a launch plan needs to know."""
        return {name: CheckedHost(one.nproc, one.gpus, one.variables) for name, one in self.hosts.items()}


@dataclass(frozen=True)
class Hosts:
    """The list that a check is of: the hosts file where there is one, else the names themselves."""

    file: str | None
    cluster: Cluster

    @classmethod
    def named(cls, file: str | None, cluster: Cluster) -> Hosts:
        """Those of a command line; a pipe, which is gone when the next command runs, gives way to the names."""
        return cls(None if file is None else ClusterSource(cluster).file, cluster)

    def __str__(self) -> str:
        """The arguments that name these hosts behind ``nccl-doctor check``."""
        names = fold([node.name for node in self.cluster.nodes])
        return f"-w {shell.word(names)}" if self.file is None else shell.word(self.file)

    @property
    def key(self) -> str:
        """What tells this list from others: the file's whole path, or else the names."""
        return str(self) if self.file is None else str(Path(self.file).resolve())

    @property
    def digest(self) -> str | None:
        """SHA-256 of what it says; None for what is gone."""
        if self.file is None:
            return hashlib.sha256(str(self).encode()).hexdigest()
        path = Path(self.file)
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        except OSError:
            return None


def remember(hosts: Hosts, snapshot: Snapshot, report: Report, taken_at: float, environ: Mapping[str, str]) -> None:
    """Keeps what a check came to. A state folder that can't be written is no reason to fail a check."""
    digest = hosts.digest
    if digest is None:
        return
    ranks = counts(snapshot)
    variables = recommended(report.diagnoses)
    seen = {
        host.name: HostSeen(
            nproc=ranks[host.name],
            gpus=None if isinstance(host.facts.gpus, Unknown) else len(host.facts.gpus),
            variables=variables.get(host.name, {}),
        )
        for host in snapshot.hosts
        if host.facts is not None
    }
    torch = [h.facts.torch.version for h in snapshot.hosts if h.facts and isinstance(h.facts.torch, TorchInfo)]
    errors = tuple(f"{d.name} ({', '.join(d.hosts)})" for d in report.diagnoses if d.severity is Severity.ERROR)
    last = LastCheck(
        digest=digest,
        taken_at=taken_at,
        complete=report.complete,
        errors=errors,
        torch=min(torch, key=release, default=None),
        hosts=seen,
    )
    path = _path(hosts, environ)
    if path is None:
        return
    # Where it can't be written, launch says that no check is known, which is true for it.
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, last.model_dump_json().encode(), private=True)


def recall(hosts: Hosts, environ: Mapping[str, str]) -> LastCheck | None:
    """The last check of a list; None where none is known or what was kept is of another release."""
    path = _path(hosts, environ)
    try:
        return LastCheck.model_validate_json(path.read_bytes()) if path is not None else None
    except (OSError, ValidationError):
        return None


def doubts(last: LastCheck | None, hosts: Hosts, now: float) -> tuple[str, ...]:
    """What speaks against a start on the strength of that check, each a sentence."""
    again = f"nccl-doctor check {hosts}"
    if last is None:
        return (f"no check of {hosts} is known; {again} makes one",)
    found = []
    if last.errors:
        found.append(f"the last check of {hosts} failed: {'; '.join(last.errors)}; {again} says what to do")
    elif not last.complete:
        found.append(f"the last check of {hosts} could not judge everything; {again} says what was missing")
    if hosts.digest != last.digest:
        found.append(f"{hosts} was changed since its last check; {again} checks it as it is")
    elif now - last.taken_at > OLD_S:
        found.append(f"the last check of {hosts} is {(now - last.taken_at) / 3600:.0f} h old; {again} renews it")
    return tuple(found)


def recommended(diagnoses: tuple[Diagnosis, ...]) -> dict[str, dict[str, str]]:
    """The variables that the fixes of a check set, by host."""
    found: dict[str, dict[str, str]] = {}
    for diagnosis in diagnoses:
        for host, variables in diagnosis.fix.variables.items():
            found.setdefault(host, {}).update(variables)
    return found


def _path(hosts: Hosts, environ: Mapping[str, str]) -> Path | None:
    """The file of this list; None where there is no home directory (containers with a foreign uid)."""
    state = environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "nccl-doctor" / f"{hashlib.sha256(hosts.key.encode()).hexdigest()[:16]}.json"
