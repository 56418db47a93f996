"""Compares and evaluates snapshots from files, without suggesting commands for this machine.

A snapshot might come from an untrusted source. A command built from names, paths, and keys in an untrusted snapshot
could add a trusted certificate authority, open a system file, or apply a cluster policy.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.base import Fleeting, marks
from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference, HangReport, InterfaceAnswers
from nccl_doctor.model.finding import Diagnosis, LogLine
from nccl_doctor.model.report import Report
from nccl_doctor.nccl.cluster_nccl import cluster_nccl, describe_gids
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.snapshot.network import Names

FROM = "from the snapshot"  # replaces such a command

LEFT_OUT = "(the lines for it are left out: a snapshot's words would run on this machine)"
"""Text appended to the summary of a fix whose commands would all run on this machine."""

Judged = TypeVar("Judged", Report, HangReport, Difference, InterfaceAnswers)


def judged_from_file(document: Judged, own_names: Container[str]) -> Judged:
    """Return the document without commands for this machine, whose names in the snapshot are ``own_names``."""
    if isinstance(document, Difference):
        both = document.diagnoses
        gone, new = (tuple(_diagnosis(item, own_names) for item in side) for side in (both.gone, both.new))
        return document.model_copy(update={"diagnoses": both.model_copy(update={"gone": gone, "new": new})})
    if isinstance(document, InterfaceAnswers):
        names = tuple(item.name for item in document.hosts)
        others = (
            (item, tuple(name for name in item.hosts or names if name not in own_names)) for item in document.exports
        )
        exports = (item.model_copy(update={"hosts": hosts, "place": FROM}) for item, hosts in others if hosts)
        diagnoses = tuple(_diagnosis(item, own_names) for item in document.diagnoses)
        return document.model_copy(update={"exports": tuple(exports), "diagnoses": diagnoses})
    changed: dict[str, object] = {"diagnoses": tuple(_diagnosis(item, own_names) for item in document.diagnoses)}
    if isinstance(document, Report):
        changed["next_step"] = None
    return document.model_copy(update=changed)


def _diagnosis(diagnosis: Diagnosis, own_names: Container[str]) -> Diagnosis:
    """Return the diagnosis without commands for this machine; if no command is left, the fix consists of text only."""
    fix = diagnosis.fix
    if not fix.commands:
        return diagnosis
    others = (item for item in fix.commands if item.host is not None and item.host not in own_names)
    kept = tuple(item.model_copy(update={"place": f"{item.place}, {FROM}" if item.place else FROM}) for item in others)
    change = {"commands": kept} if kept else {"summary": f"{fix.summary} {LEFT_OUT}", "risk": "manual", "commands": ()}
    return diagnosis.model_copy(update={"fix": fix.model_copy(update=change)})


_GID = re.compile(r"::ffff:[0-9]{1,3}(?:[.][0-9]{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}")


def beside(report: Report, snapshot: Snapshot) -> Report:
    """Return a log's report in which messages about RDMA faults also name the RDMA ports found in a snapshot."""
    rdma = cluster_nccl(snapshot).rdma

    def named(diagnosis: Diagnosis) -> Diagnosis:
        texts = [line.text if isinstance(line, LogLine) else line for line in diagnosis.evidence]
        gids = [
            gid for text in texts if "GID" in text or "Gid" in text for gid in _GID.findall(text) if gid.count(":") > 1
        ]
        words = describe_gids(rdma, list(dict.fromkeys(gids))) if diagnosis.name == "ib-fault" else None
        return (
            diagnosis
            if words is None
            else diagnosis.model_copy(update={"message": f"{diagnosis.message} In the snapshot, {words}."})
        )

    return report.model_copy(update={"diagnoses": tuple(map(named, report.diagnoses))})


KEYS = ("name", "path", "interface", "uuid", "index", "destination", "number", "port")
"""Keys that identify an item of a list, in order of preference."""
ABSENT = "nothing"
EMPTY = {ABSENT, "[]", "{}"}


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return the differences between two snapshots in facts and diagnoses."""
    old, new = ({(d.code, d.hosts): d for d in judge(snapshot, "check").diagnoses} for snapshot in (before, after))
    gone, came = (tuple(d for key, d in some.items() if key not in rest) for some, rest in ((old, new), (new, old)))
    return Difference(changes=changes(before, after), diagnoses=DiagnosisChanges(gone=gone, new=came))


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """Return all changes, beginning with those to the cluster.

    A change that is the same on several hosts is listed once.
    """
    cluster = [(change, ()) for change in _differences(_cluster(before), _cluster(after))]
    old, new = ({host.name: host for host in snapshot.hosts} for snapshot in (before, after))
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys([*old, *new]):
        both = old.get(name), new.get(name)
        resolutions = [host.facts.resolution for host in both if host is not None and host.facts is not None]
        names = {key for resolution in resolutions if isinstance(resolution, Names) for key in resolution.own}
        for change in _differences(*(_host(host, names) for host in both)):
            hosts.setdefault(change, []).append(name)
    return tuple(
        Change(what=what, before=value, after=later, hosts=tuple(names))
        for (what, value, later), names in (*cluster, *hosts.items())
    )


def _cluster(snapshot: Snapshot) -> dict[str, str]:
    tree = {
        "master_addr": snapshot.cluster.master_addr,
        "master_port": snapshot.cluster.master_port,
        "same": list(snapshot.cluster.same),
        "nccl-doctor": snapshot.version,
        "names": {name: answer.model_dump(mode="json") for name, answer in snapshot.names.items()},
    }
    return dict(_leaves(tree, ""))


def _host(host: Host | None, names: set[str]) -> dict[str, str]:
    """Return a host's facts as a flat table, with only the resolved names that are in ``names``."""
    if host is None:
        return {"in the list": "no"}
    if host.facts is None:
        reason = host.failure.kind if host.failure is not None else "not reached"
        return {"in the list": "yes", "reached": f"no ({reason})"}
    tree: dict[str, Any] = _lasting(host.facts, host.facts.model_dump(mode="json", by_alias=True))
    resolved = host.facts.resolution
    if isinstance(resolved, Names):
        answers = {name: resolved.get(name) for name in sorted(names)}
        tree["resolution"] = {name: item.model_dump(mode="json") for name, item in answers.items() if item is not None}
    node = host.node.model_dump(mode="json", exclude={"name", "node_rank", "local"})
    return {"in the list": "yes", "reached": "yes", **dict(_leaves({"node": node, **tree}, ""))}


def _lasting(value: BaseModel, tree: dict[str, Any]) -> dict[str, Any]:
    """Return a model's JSON without the fields that differ in every snapshot."""
    fleeting = marks(type(value), Fleeting)
    return {name: _part(getattr(value, name, None), part) for name, part in tree.items() if name not in fleeting}


def _part(value: object, tree: object) -> object:
    if isinstance(value, BaseModel) and isinstance(tree, dict):
        return _lasting(value, tree)
    if isinstance(value, dict) and isinstance(tree, dict):
        return {name: _part(value.get(name), part) for name, part in tree.items()}
    if isinstance(value, (list, tuple)) and isinstance(tree, list):
        return [_part(item, part) for item, part in zip(value, tree, strict=True)]
    return tree


def _differences(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    # If a host is or was away, nothing else can be compared.
    together = old.get("reached") == new.get("reached") and old.get("in the list") == new.get("in the list")
    for what in dict.fromkeys([*old, *new]):
        before, after = old.get(what, ABSENT), new.get(what, ABSENT)
        if {before, after} <= EMPTY:  # the entries that a list has now show that it was empty before
            continue
        if before != after and (together or what in ("reached", "in the list")):
            yield what, before, after


def _leaves(tree: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield each value with its path; an unknown fact or a list without objects is a single value."""
    if isinstance(tree, dict):
        reason = next((word for word in ("unknown", "skipped") if f"${word}" in tree), None)
        if reason is not None:
            yield path, f"{reason}: {tree[f'${reason}']}"
            return
        for name, value in tree.items():
            yield from _leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(tree, list) and any(isinstance(value, dict) for value in tree):
        tally: Counter[str] = Counter()
        for entry in tree:  # by its name, with a number if the name occurs again
            label = next((str(entry[key]) for key in KEYS if isinstance(entry, dict) and key in entry), "")
            tally[label] += 1
            yield from _leaves(entry, f"{path}[{label if tally[label] == 1 and label else f'{label}#{tally[label]}'}]")
    else:
        yield path, tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False)
