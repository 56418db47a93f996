"""Stores the last check's result for each list of hosts, for use by ``nccl-doctor launch`` and ``nccl-doctor fix``.

The results for each hosts file or list of names are stored in a file under ``$XDG_STATE_HOME/nccl-doctor`` (XDG Base
Directory Specification). Each stored file contains the hosts' names and addresses, their numbers of ranks and GPUs, the
oldest torch version, recommended variables, and the errors that were found. Only the owner of the file can read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nccl_doctor.launch.plan import CheckedHost, LastResults
from nccl_doctor.model.base import FrozenModel, Unknown, Version
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.finding import Diagnosis, Severity
from nccl_doctor.model.report import Report
from nccl_doctor.nccl.host_nccl import nccl_interface
from nccl_doctor.nccl.versions import release
from nccl_doctor.snapshot.hosts import Snapshot, rank_counts
from nccl_doctor.snapshot.system import TorchInfo
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.text.machine import state_folder, write_atomically

OLD_S = 86_400.0


class LastCheck(FrozenModel):
    """The result of the last check of a list of hosts.

    Attributes:
        digest: the SHA-256 digest of the hosts file or of the list of host names.
        checked_at: the time of the check, in seconds since the epoch.
        errors: the name of each error, with its hosts.
    """

    digest: str
    checked_at: float
    complete: bool
    errors: tuple[str, ...]
    torch: Version | None
    hosts: dict[str, CheckedHost]


@dataclass(frozen=True)
class Hosts:
    """The list of hosts of a check, given as a hosts file or as names."""

    file: str | None
    cluster: Cluster

    @classmethod
    def named(cls, file: str | None, cluster: Cluster) -> Hosts:
        """Create the list for a command's hosts. A hosts file that is a pipe is replaced by the host names."""
        return cls(None if file is None else ClusterSource(cluster).file, cluster)

    def __str__(self) -> str:
        """Return the arguments that pass the hosts to nccl-doctor's commands."""
        engine_words, origins = ClusterSource(self.cluster).engine_words, self.cluster.origins
        if engine_words:
            among = ((option, origins[option]) for option in ("-w", "-x") if option in origins)
            return " ".join(shell.word(word) for pair in (*engine_words, *among) for word in pair if word is not None)
        return self._names if self.file is None else shell.word(self.file)

    @property
    def key(self) -> str:
        """The string that identifies the list, based on the absolute path of the hosts file or on the host names."""
        return self._names if self.file is None else str(Path(self.file).resolve())

    @property
    def identifier(self) -> str:
        """The base name for files that store data about the list; the name consists of 16 hexadecimal digits."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def digest(self) -> str | None:
        """The SHA-256 digest of the list's content, or None if the file can't be read."""
        if self.file is None:
            return hashlib.sha256(self.key.encode()).hexdigest()
        path = Path(self.file)
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        except OSError:
            return None

    @property
    def _names(self) -> str:
        return f"-w {shell.word(fold([node.name for node in self.cluster.nodes]))}"


def remember(hosts: Hosts, snapshot: Snapshot, report: Report, checked_at: float, environ: Mapping[str, str]) -> None:
    """Store the result of a check; do nothing if the state directory can't be written to."""
    digest = hosts.digest
    if digest is None:
        return
    ranks = rank_counts(snapshot)
    variables = recommended(report.diagnoses)
    checked = {}
    for host in snapshot.reached:
        gpus = host.facts.gpus if host.facts is not None else ()
        count = None if isinstance(gpus, Unknown) else len(gpus)
        host_variables, used = variables.get(host.name, {}), nccl_interface(host)
        address = used.address if used is not None and not is_loopback(used.address) else None
        checked[host.name] = CheckedHost(nproc=ranks[host.name], gpus=count, address=address, variables=host_variables)
    torch = [h.facts.torch.version for h in snapshot.hosts if h.facts and isinstance(h.facts.torch, TorchInfo)]
    errors = tuple(f"{d.name} ({', '.join(d.hosts)})" for d in report.diagnoses if d.severity is Severity.ERROR)
    oldest, path = min(torch, key=release, default=None), _path(hosts, environ)
    whole = report.complete
    last = LastCheck(digest=digest, checked_at=checked_at, complete=whole, errors=errors, torch=oldest, hosts=checked)
    if path is None:
        return
    # If it can't be written, launch says that the cluster has not been checked, which is then true for it.
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, last.model_dump_json().encode(), private=True)


def recall(hosts: Hosts, environ: Mapping[str, str]) -> LastCheck | None:
    """Return the stored result of the hosts' last check, or None if no valid result is stored."""
    path = _path(hosts, environ)
    try:
        return LastCheck.model_validate_json(path.read_bytes()) if path is not None else None
    except (OSError, ValidationError):
        return None


def last_results(hosts: Hosts, environ: Mapping[str, str], now: float) -> LastResults:
    """Return the results of the last check of the hosts, with warnings. ``now`` is in seconds since the epoch."""
    last = recall(hosts, environ)
    warnings = doubts(last, hosts, now)
    return LastResults({}, None, warnings) if last is None else LastResults(last.hosts, last.torch, warnings)


def doubts(last: LastCheck | None, hosts: Hosts, now: float) -> tuple[str, ...]:
    """Return warnings if the last check is missing, old or incomplete, if it found errors, or if the hosts changed."""
    again = f"nccl-doctor check {hosts}"
    if last is None:
        return (f"{hosts} has not been checked yet; run: {again}",)
    warnings = []
    if last.errors:
        warnings.append(f"the last check of {hosts} failed: {'; '.join(last.errors)}; {again} says what to do")
    elif not last.complete:
        warnings.append(f"the last check of {hosts} could not judge everything; {again} says what was missing")
    if hosts.digest != last.digest:
        warnings.append(f"{hosts} was changed since its last check; {again} checks it as it is")
    elif now - last.checked_at > OLD_S:
        warnings.append(f"the last check of {hosts} is {(now - last.checked_at) / 3600:.0f} h old; {again} renews it")
    return tuple(warnings)


def recommended(diagnoses: tuple[Diagnosis, ...]) -> dict[str, dict[str, str]]:
    by_host: dict[str, dict[str, str]] = {}
    for diagnosis in diagnoses:
        for host, variables in diagnosis.fix.variables.items():
            by_host.setdefault(host, {}).update(variables)
    return by_host


def _path(hosts: Hosts, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the file that stores the last check of the hosts.

    The result is None if there is no home directory, as in a container with an unknown UID.
    """
    folder = state_folder(environ)
    return None if folder is None else folder / f"{hosts.identifier}.json"
