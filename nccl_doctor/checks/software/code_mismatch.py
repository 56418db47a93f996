"""A file or directory that must be the same on all hosts differs between hosts.

What it means: ranks run different programs or read different data. If the ranks' collectives differ as a result, the
job hangs or fails with "Detected mismatch between collectives on ranks". Otherwise, the results of the job might be
wrong.

How we know: the hosts file lists the paths that must be the same, such as `same: [train.py, data/index.json, src]`. A
relative path is resolved from the SSH user's home directory, in which commands over SSH start. The check compares the
SHA-256 digest and the size of a file, or of every file in a directory except the files in `.git`, `__pycache__` and
`.ipynb_checkpoints`. Symbolic links in a directory are not followed, but their target paths are compared. A Git
checkout is compared by its commit, its index (staged changes) and its changed tracked files. The check does not run
git, since git's configuration could start programs. A path that is missing on all hosts is reported, since the hosts
file requires the path.

Fix: copy the file or directory from one host to the others (`rsync -a`, `git pull`), or keep code and data on a shared
file system.
"""

import hashlib

from nccl_doctor.checks.effects import VERSIONS
from nccl_doctor.checks.view import Findings, HostDifference, View, check, difference
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.system import SameEntry
from nccl_doctor.text.hostlist import fold, grouped, quoted

SHOWN = 8


@check("NCD508", phrase="code differs", severity=Severity.ERROR, needs=("same",), explains=(VERSIONS,))
def code_mismatch(view: View) -> Findings:
    for path in view.snapshot.cluster.same:
        entries: dict[str, SameEntry] = {}
        for host, facts in view.facts:
            entry = next((candidate for candidate in known(facts.same) if candidate.path == path), None)
            if entry is None or entry.problem is not None:
                yield Unjudged((host.name,), f"{path}: {entry.problem if entry else 'was not examined'}")
            else:
                entries[host.name] = entry
        differs = difference(path, {name: _summary(entry) for name, entry in entries.items()})
        absent = tuple(name for name, entry in entries.items() if entry.kind == "missing")
        present = {_summary(entry) for entry in entries.values() if entry.kind != "missing"}
        if absent and len(present) == 1:
            yield _absent(path, absent, entries)
        elif differs is not None:
            yield _different(differs, entries)
        elif _is_of_line(view, path):
            continue  # the directory in which the line will be started is unknown
        elif entries and all(entry.kind == "missing" for entry in entries.values()):
            of_line = path in (view.snapshot.cluster.line or "").split()
            yield Finding(
                hosts=tuple(entries),
                message=f"{path}, which the launch command starts, does not exist on any host."
                if of_line
                else f"{path} must be identical on all hosts but does not exist on any of them.",
                evidence=tuple(dict.fromkeys(f"looked at {entry.resolved}" for entry in entries.values())),
                facts={"path": path, "files": []},
                severity=None if of_line else Severity.WARNING,
                fix="Correct the path in the launch command."
                if of_line
                else 'Correct the path under "same" in the hosts file: a relative path starts at the home directory '
                "of the user who logs in.",
            )


def _is_of_line(view: View, path: str) -> bool:
    return not path.startswith(("/", "~")) and path in (view.snapshot.cluster.line or "").split()


def _summary(entry: SameEntry) -> str:
    """Return a summary of a file, folder or checkout.

    Different contents have different summaries.
    """
    if entry.kind == "missing":
        return "missing"
    changed = hashlib.sha256(repr(sorted(entry.files.items())).encode()).hexdigest()[:12] if entry.files else ""
    if entry.kind == "checkout":
        staged = f", index {entry.staged[:12]}" if entry.staged else ""
        return f"commit {(entry.commit or '')[:12]}{staged}" + (f", with changes ({changed})" if changed else "")
    digest = entry.files.get("", "")[:12] if entry.kind == "file" else changed
    return f"{entry.kind} of {entry.size} bytes ({digest or 'empty'})"


def _absent(path: str, absent: tuple[str, ...], entries: dict[str, SameEntry]) -> Finding:
    """Return the finding for a path that is missing on some hosts and identical on all others."""
    there = [name for name in entries if name not in absent]
    resolved = entries[there[0]].resolved
    return Finding(
        hosts=absent,
        message=f"{path} exists on {fold(there)} but not on {fold(absent)}.",
        evidence=tuple(dict.fromkeys(f"looked at {entries[name].resolved}" for name in absent)),
        facts={"path": path, "resolved": resolved, "files": []},
        fix=f"Copy {resolved} from {there[0]} to {fold(absent)} (rsync, git pull), or keep it on a shared file system.",
    )


def _different(differs: HostDifference, entries: dict[str, SameEntry]) -> Finding:
    usual = entries[next(iter(differs.groups.values()))[0]]
    lines = [f"{value}: {fold(hosts)}" for value, hosts in differs.groups.items()]
    unlike = {name: dict(usual.files.items() ^ entries[name].files.items()) for name in differs.outliers}
    files = grouped((file, name) for name in differs.outliers for file in sorted(unlike[name]) if file)
    shown = [f"{file}: differs on {fold(hosts)}" for file, hosts in list(files.items())[:SHOWN]]
    more = [f"and {len(files) - SHOWN} more files"] if len(files) > SHOWN else []
    return Finding(
        hosts=differs.outliers,
        message=f"{quoted(differs.subject)} on {fold(differs.outliers)} differs from the copy on the other hosts.",
        evidence=(*lines, *shown, *more),
        facts={"path": differs.subject, "resolved": usual.resolved, "files": sorted(files)},
        fix=f"Copy {usual.resolved} from one host to the others (rsync, git pull), or keep it on a shared file system.",
    )
