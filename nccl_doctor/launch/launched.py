"""The answer of ``nccl-doctor launch``: the lines that start a job, warnings about them, and the last check.

The result of the last check is kept in a small file for each hosts file (or list of names) under
``$XDG_STATE_HOME/nccl-doctor`` (XDG Base Directory Specification). It holds host names, counts and recommended
variables, and is readable only by its owner.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from nccl_doctor.errors import UsageError
from nccl_doctor.launch import slurm_job
from nccl_doctor.launch.engine_lines import engine_commands, engine_notes, own_addresses
from nccl_doctor.launch.launchers import commands, default_launcher, start_over_ssh, tcp_script
from nccl_doctor.launch.line import batch_notes, divides
from nccl_doctor.launch.plan import CheckedHost, LaunchPlan, plan, secrets
from nccl_doctor.model.base import FrozenModel, Unknown, Version
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource, place_of, placed
from nccl_doctor.model.finding import Command, Diagnosis, Severity, on
from nccl_doctor.model.report import Report
from nccl_doctor.nccl.host_nccl import nccl_interface
from nccl_doctor.nccl.versions import DIAGNOSTICS, release
from nccl_doctor.nccl.versions import diagnosable as recorded
from nccl_doctor.snapshot.hosts import Snapshot, rank_counts
from nccl_doctor.snapshot.system import TorchInfo
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.text.machine import state_folder, write_atomically

if TYPE_CHECKING:
    from nccl_doctor.model.documents import Launch

OLD_S = 86_400.0


class LastCheck(FrozenModel):
    """The last check: SHA-256 of its hosts file or names, time in seconds (UTC), errors by name with their hosts."""

    digest: str
    checked_at: float
    complete: bool
    errors: tuple[str, ...]
    torch: Version | None
    hosts: dict[str, CheckedHost]


@dataclass(frozen=True)
class Hosts:
    """The list of hosts of a check: the hosts file, otherwise names."""

    file: str | None
    cluster: Cluster

    @classmethod
    def named(cls, file: str | None, cluster: Cluster) -> Hosts:
        """Return the arguments for these hosts on a command line; a pipe is replaced by the names."""
        return cls(None if file is None else ClusterSource(cluster).file, cluster)

    def __str__(self) -> str:
        """Return the arguments with which ``nccl-doctor check`` names these hosts."""
        names = fold([node.name for node in self.cluster.nodes])
        return f"-w {shell.word(names)}" if self.file is None else shell.word(self.file)

    @property
    def key(self) -> str:
        """The identity of this list: the file's absolute path, or the names."""
        return str(self) if self.file is None else str(Path(self.file).resolve())

    @property
    def identifier(self) -> str:
        """The name of files for this list, 16 hexadecimal digits."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def digest(self) -> str | None:
        """SHA-256 of the list's content; None if the file is gone."""
        if self.file is None:
            return hashlib.sha256(str(self).encode()).hexdigest()
        path = Path(self.file)
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        except OSError:
            return None


def remember(hosts: Hosts, snapshot: Snapshot, report: Report, checked_at: float, environ: Mapping[str, str]) -> None:
    """Store a check's result, if the state folder can be written."""
    digest = hosts.digest
    if digest is None:
        return
    ranks = rank_counts(snapshot)
    variables = recommended(report.diagnoses)
    checked = {}
    for host in snapshot.reached:
        gpus = host.facts.gpus if host.facts is not None else ()
        count = None if isinstance(gpus, Unknown) else len(gpus)
        own, used = variables.get(host.name, {}), nccl_interface(host)
        address = used.address if used is not None and not is_loopback(used.address) else None
        checked[host.name] = CheckedHost(nproc=ranks[host.name], gpus=count, address=address, variables=own)
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
    """Return the last check of a list; None if there is none, or it is from another release."""
    path = _path(hosts, environ)
    try:
        return LastCheck.model_validate_json(path.read_bytes()) if path is not None else None
    except (OSError, ValidationError):
        return None


def doubts(last: LastCheck | None, hosts: Hosts, now: float) -> tuple[str, ...]:
    """Return warnings about the last check: failed, incomplete, old, or of other hosts."""
    again = f"nccl-doctor check {hosts}"
    if last is None:
        return (f"{hosts} has not been checked yet; run: {again}",)
    found = []
    if last.errors:
        found.append(f"the last check of {hosts} failed: {'; '.join(last.errors)}; {again} says what to do")
    elif not last.complete:
        found.append(f"the last check of {hosts} could not judge everything; {again} says what was missing")
    if hosts.digest != last.digest:
        found.append(f"{hosts} was changed since its last check; {again} checks it as it is")
    elif now - last.checked_at > OLD_S:
        found.append(f"the last check of {hosts} is {(now - last.checked_at) / 3600:.0f} h old; {again} renews it")
    return tuple(found)


def recommended(diagnoses: tuple[Diagnosis, ...]) -> dict[str, dict[str, str]]:
    """Return the variables that a check recommended, by host."""
    found: dict[str, dict[str, str]] = {}
    for diagnosis in diagnoses:
        for host, variables in diagnosis.fix.variables.items():
            found.setdefault(host, {}).update(variables)
    return found


def _path(hosts: Hosts, environ: Mapping[str, str]) -> Path | None:
    """Return the file of this list; None without a home directory (containers with a foreign uid)."""
    folder = state_folder(environ)
    return None if folder is None else folder / f"{hosts.identifier}.json"


_STARTER = re.compile(r"python[0-9.]*|torchrun")


class Wishes(NamedTuple):
    """Options for the start of a job.

    Attributes:
        launcher: by name; None for the one that fits the torch of the last check.
        form: "slurm" for a batch script, "ssh" for one line that starts all hosts.
        use_env: an option of torch.distributed.launch; ``diagnosable``: whether a failure should leave traces.
    """

    launcher: str | None = None
    form: str = "shell"
    use_env: bool = False
    diagnosable: bool = False
    diagnostics: bool = False  # NCCL's own diagnostics, at every start
    batch_size: int | None = None


def split(words: list[str], argv: list[str], *, named: bool, engine: bool = False) -> tuple[str | None, list[str]]:
    """Return the hosts file, and the script (or the ``engine``'s model) with its arguments after "--"."""
    behind = len(argv) - argv.index("--") - 1 if "--" in argv else len(words) - (not named)
    before, script = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1:
        raise UsageError(f"unexpected argument {before[1]}; put the script after --")
    if engine:
        return (before[0] if before else None), script
    if not script:
        raise UsageError("no script given; for example: nccl-doctor launch hosts.yaml -- train.py --epochs 3")
    if _STARTER.fullmatch(PurePath(script[0]).name):
        raise UsageError(f"leave out {shell.word(script[0])}: the printed lines start the script themselves")
    if PurePath(script[0]).suffix in {".sh", ".bash", ".sbatch", ".slurm"}:
        raise UsageError(f"{shell.word(script[0])} is a shell script; give the Python script that it starts")
    return (before[0] if before else None), script


def launched(
    cluster: Cluster, hosts: str | None, script: Sequence[str], wishes: Wishes, environ: Mapping[str, str], now: float
) -> Launch:
    """Return the job of a cluster with the results of its last check; ``now`` is in seconds since the epoch."""
    these = Hosts.named(hosts, cluster)
    last = recall(these, environ)
    job = plan(cluster, last.hosts if last else {}, tuple(script), last.torch if last else None)
    if wishes.batch_size is not None:
        divides(wishes.batch_size, job.world_size)
    notes, warnings = batch_notes(job.script, job.world_size)
    unprinted = _unprinted(job, wishes.form)
    if wishes.form == "slurm":  # a batch script shows no notes
        warnings += unprinted
    else:
        notes += unprinted
    if wishes.diagnosable:
        traces = f"/tmp/{job.name}-{job.digest}"  # noqa: S108 - a file a rank, named after the job
        job = job.with_variables(recorded(job.torch, traces))
        notes.append(f"after a failure, on each host: nccl-doctor logs {shell.word(traces)}.*")
    if wishes.diagnostics:
        job = job.with_variables(DIAGNOSTICS)
    if wishes.form != "shell" and any(map(place_of, cluster.nodes)):
        why = "starts no job in a container, where it would outlive its connection"
        hint = "start each host's line in its container, as --format shell prints them"
        raise UsageError(f"--format {wishes.form} {why}; {hint}")
    if wishes.form == "slurm" and wishes.launcher not in (None, "torchrun", "c10d"):
        raise UsageError(f"--format slurm starts torchrun; --launcher {wishes.launcher} has no batch script here")
    if cluster.engine is not None and wishes.launcher is None and wishes.form != "slurm":
        return _of_engine(job, cluster.engine, these, last, wishes, now)
    launcher = "slurm" if wishes.form == "slurm" else wishes.launcher or default_launcher(job.torch)
    warnings += tcp_script(job)[1] if launcher == "tcp" else ()
    if launcher == "slurm":
        lines = on(None, slurm_job.script(job, c10d=wishes.launcher == "c10d"))
    else:
        lines = commands(job, launcher, use_env=wishes.use_env)
    if wishes.form == "ssh":
        lines = on(None, start_over_ssh(cluster, lines))
        notes.append("starts in each host's home directory; Ctrl-C ends it on all of them")
    return _launch(job, launcher, lines, notes, [*warnings, *doubts(last, these, now)])


def _unprinted(job: LaunchPlan, form: str) -> list[str]:
    names = sorted({name for start in job.starts for name in secrets(start.variables)})
    if not names:
        return []
    place = {"ssh": "in your login's profile on each host", "slurm": "in the shell that runs sbatch"}
    return [f"secrets are not printed: export {', '.join(names)} {place.get(form, 'in the shell that runs a line')}"]


def _of_engine(
    job: LaunchPlan, engine: str, hosts: Hosts, last: LastCheck | None, wishes: Wishes, now: float
) -> Launch:
    if wishes.form != "shell":
        raise UsageError(f"--format {wishes.form} starts no engine; each host has a line of its own, in its own shell")
    seen = last.hosts.items() if last else ()
    own = own_addresses(job, {name: one.address for name, one in seen if one.address is not None})
    notes, warnings = engine_notes(job, engine, own)
    notes += _unprinted(job, wishes.form)
    return _launch(job, engine, engine_commands(job, engine, own), notes, [*warnings, *doubts(last, hosts, now)])


def _launch(
    job: LaunchPlan, launcher: str, lines: tuple[Command, ...], notes: list[str], warnings: list[str]
) -> Launch:
    from nccl_doctor.model.documents import Launch

    cluster = job.cluster
    return Launch(
        launcher=launcher,
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        world_size=job.world_size,
        ranks=job.ranks,
        commands=placed(lines, cluster, inside=True),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )
