"""Reads and writes snapshots, and writes logs and lists of hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from nccl_doctor.cli.options import KeepOptions
from nccl_doctor.cli.output import write_file
from nccl_doctor.errors import DoctorError, SnapshotError
from nccl_doctor.inventory.build import this_machine
from nccl_doctor.inventory.sources import read_bytes
from nccl_doctor.model.engine import engines
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import Report
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.bounds import refuse_crowded
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from nccl_doctor.judge.from_file import Judged
    from nccl_doctor.model.cluster import Cluster, Node
    from nccl_doctor.snapshot.hang import HangSnapshot

MOST_BYTES = 256 << 20  # bytes of a snapshot's file; that of 4,096 hosts has 22 MB
MOST_VALUES, VALUE_BYTES = 6_000_000, 8
"""Maximum number of values in a snapshot, and minimum average size of a value in bytes.

A snapshot of 4,096 hosts has 900,000 values with an average of 25 bytes.
"""
MOST_CONTAINERS, CONTAINER_BYTES = 1_500_000, 24
"""Maximum number of lists and objects in a snapshot, and their minimum average size in bytes.

A snapshot of 4,096 hosts has 250,000 lists and objects, with an average of 65 bytes without whitespace.
"""
FREE = 16_384  # allowed in any snapshot, however small: these take a few megabytes
DEEPEST = 32

PATIENCE_S = 60.0  # time for a snapshot that comes through a pipe, perhaps from another machine

AnySnapshot = TypeVar("AnySnapshot", Snapshot, "HangSnapshot")


def read_snapshot(path: Path, kind: type[AnySnapshot] = Snapshot) -> AnySnapshot:  # type: ignore[assignment]  # mypy: python/mypy#3737
    """Return a snapshot of type ``kind`` that ``--save`` wrote; raise SnapshotError for any other file.

    Reading needs at most 64 MiB of memory plus 32 times the size of the file. The values in the JSON text are counted
    before any Python object is created, and reading stops at the first invalid value.
    """
    try:
        snapshot = kind.model_validate(_parsed(read_bytes(str(path), "a snapshot", MOST_BYTES, PATIENCE_S)))
        _read_options(snapshot.cluster)
    except OSError as error:
        raise SnapshotError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        fault = str(error)
        if isinstance(error, ValidationError):  # its first fault, after its position
            first_error = error.errors(include_url=False, include_input=False, include_context=False)[0]
            fault = ": ".join(filter(None, (".".join(map(str, first_error["loc"])), first_error["msg"])))
        raise SnapshotError(f"{path} is not an nccl-doctor snapshot: {fault}") from error
    return snapshot


def _read_options(cluster: Cluster) -> None:
    """Validate the engines' options, which are plain JSON in a snapshot; raise ValidationError for invalid options."""
    cluster.options(KubeFacts)
    for node in cluster.nodes:
        for engine in engines():
            node.options(engine.options)


def _parsed(data: bytes) -> object:
    """Return the parsed JSON; raise ValueError if it is too large or has more values per byte than any snapshot."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"bigger than {MOST_BYTES >> 20} MiB")
    values = min(MOST_VALUES, FREE + len(data) // VALUE_BYTES)
    containers = min(MOST_CONTAINERS, FREE + len(data) // CONTAINER_BYTES)
    refuse_crowded(data, values=values, containers=containers, depth=DEEPEST)
    try:
        return from_json(data)
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}") from error


def of_snapshot(document: Judged, nodes: Iterable[Node]) -> Judged:
    """Return a document that is based on a snapshot file, without the commands that would run on this machine."""
    from nccl_doctor.judge.from_file import judged_from_file

    here = this_machine()
    names = {node.name for node in nodes if node.local or here.answers_to(node.name) or here.answers_to(node.address)}
    return judged_from_file(document, names)


def keep(snapshot: Snapshot | HangSnapshot, kept: KeepOptions) -> None:
    """Write the snapshot if ``--save`` was given, and print what was left out of the file."""
    if kept.save is None:
        return
    from nccl_doctor.snapshot.redact import redact

    left, done = (snapshot, None) if kept.save_whole else redact(snapshot)
    write_file(kept.save, left.model_dump_json(by_alias=True, indent=1) + "\n", private=True)
    if done is not None and str(done):
        sys.stderr.write(clean(f"{kept.save}: left out {done}; --save-whole keeps them") + "\n")


def save_logs(folder: Path | None, output: Mapping[str, Iterable[str]]) -> None:
    """Write the ranks' output to one private file per host; raise DoctorError if writing fails."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DoctorError(f"{folder}: the logs can't be written: {error.strerror}") from error
    for host, lines in output.items():
        # a host's name that is not a valid file name is changed into one
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in host).lstrip(".")
        write_file(folder / f"{name}.log", _lines(lines), private=True)


def write_hosts(report: Report, passed: Path | None, failed: Path | None, least: Severity | None) -> None:
    """Write the names of the hosts that passed and of the hosts that failed to files, one name per line.

    A host has failed if it was not reached, or if it has a diagnosis of severity ``least`` or higher.
    """
    at_fault = {host.name for host in report.hosts if not host.reached}
    for diagnosis in report.diagnoses:
        if least is not None and diagnosis.severity.rank >= least.rank:
            at_fault.update(diagnosis.hosts)
    for path, wanted in ((passed, False), (failed, True)):
        if path is not None:
            write_file(path, _lines(host.name for host in report.hosts if (host.name in at_fault) is wanted))


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)
