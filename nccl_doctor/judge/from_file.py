"""Snapshots from files: compared fact by fact, and judged without commands for the machine that judges.

A snapshot may come from anybody. A line for this machine would be made of its names, paths and keys alone: a
certificate authority to be trusted, a system's file to be opened, a policy of the cluster's to be applied.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any, TypeVar

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference, Exports, HangReport, InterfaceAnswers
from nccl_doctor.model.finding import Command, Fix
from nccl_doctor.model.report import Diagnosis, Report
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.snapshot.network import Names

FROM = "from the snapshot"
"""Stands where such a command is for."""

Judged = TypeVar("Judged", Report, HangReport, Difference, InterfaceAnswers)


def judged_from_file(document: Judged, own: Container[str]) -> Judged:
    """The document without commands for this machine.

    Args:
        document: made of a snapshot's words alone.
        own: names of hosts that are this machine, or were that of whoever took the snapshot.
    """
    if isinstance(document, Difference):
        gone, new = (
            tuple(_diagnosis(one, own) for one in side) for side in (document.diagnoses.gone, document.diagnoses.new)
        )
        return document.model_copy(
            update={"diagnoses": document.diagnoses.model_copy(update={"gone": gone, "new": new})}
        )
    if isinstance(document, InterfaceAnswers):
        names = tuple(one.name for one in document.hosts)
        exports = tuple(made for one in document.exports if (made := _exports(one, names, own)).hosts != ())
        return document.model_copy(update={"exports": exports})
    changed: dict[str, object] = {"diagnoses": tuple(_diagnosis(one, own) for one in document.diagnoses)}
    if isinstance(document, Report):
        changed["next_step"] = None
    return document.model_copy(update=changed)


def _diagnosis(found: Diagnosis, own: Container[str]) -> Diagnosis:
    return found.model_copy(update={"fix": _fix(found.fix, own)}) if found.fix.commands else found


def _fix(fix: Fix, own: Container[str]) -> Fix:
    """Its commands for other hosts; prose alone where there are none."""
    commands = tuple(_marked(one) for one in fix.commands if one.host is not None and one.host not in own)
    if commands:
        return fix.model_copy(update={"commands": commands})
    prose = f"{fix.summary[:-1]}." if fix.summary.endswith(":") else fix.summary
    return fix.model_copy(update={"summary": prose, "risk": "manual", "commands": ()})


def _marked(command: Command) -> Command:
    return command.model_copy(update={"place": f"{command.place}, {FROM}" if command.place else FROM})


def _exports(block: Exports, names: tuple[str, ...], own: Container[str]) -> Exports:
    """The variables for those of its hosts that are not this machine."""
    others = tuple(name for name in block.hosts or names if name not in own)
    return block.model_copy(update={"hosts": others, "place": FROM})


FLEETING = frozenset(
    {"clock", "sockets", "age_s", "memory_used_mib", "free_bytes", "timings", "spent", "firewall_after", "pid", "ppid"}
    | {"network"}  # the number of a network namespace
)
"""Names of fields that are never the same twice."""
KEYS = ("name", "path", "interface", "uuid", "index", "destination", "number", "port")
"""The field by which an entry of a list is known; the first that it has."""
ABSENT = "nothing"
EMPTY = {ABSENT, "[]", "{}"}


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Compares two snapshots: facts, and what is found in them."""
    old, new = ({(d.code, d.hosts): d for d in judge(one, "check").diagnoses} for one in (before, after))
    turned = DiagnosisChanges(
        gone=tuple(d for key, d in old.items() if key not in new),
        new=tuple(d for key, d in new.items() if key not in old),
    )
    return Difference(changes=changes(before, after), diagnoses=turned)


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """All changes, those of the cluster first; the same change on several hosts once."""
    cluster = [(change, ()) for change in _differences(_cluster(before), _cluster(after))]
    old = {host.name: host for host in before.hosts}
    new = {host.name: host for host in after.hosts}
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys([*old, *new]):
        both = old.get(name), new.get(name)
        resolutions = [host.facts.resolution for host in both if host is not None and host.facts is not None]
        names = {own for resolution in resolutions if isinstance(resolution, Names) for own in resolution.own}
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
    """Every fact of a host as a flat table; of the cluster's names, only those given."""
    if host is None:
        return {"in the list": "no"}
    if host.facts is None:
        reason = host.failure.kind if host.failure is not None else "not reached"
        return {"in the list": "yes", "reached": f"no ({reason})"}
    tree = host.facts.model_dump(mode="json", by_alias=True)
    resolved = host.facts.resolution
    if isinstance(resolved, Names):
        answers = {name: resolved.get(name) for name in sorted(names)}
        tree["resolution"] = {name: one.model_dump(mode="json") for name, one in answers.items() if one is not None}
    node = host.node.model_dump(mode="json", exclude={"name", "node_rank", "local"})
    return {"in the list": "yes", "reached": "yes", **dict(_leaves({"node": node, **tree}, ""))}


def _differences(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    # Of a host that was or is away nothing more can be compared than that.
    together = old.get("reached") == new.get("reached") and old.get("in the list") == new.get("in the list")
    for what in dict.fromkeys([*old, *new]):
        before, after = old.get(what, ABSENT), new.get(what, ABSENT)
        if {before, after} <= EMPTY:  # a list that was empty is told by the entries that it has now
            continue
        if before != after and (together or what in ("reached", "in the list")):
            yield what, before, after


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    """Every value with its place; a fact that is unknown is one value, and so is an empty collection."""
    if isinstance(tree, dict) and "$unknown" in tree:
        yield path, f"unknown: {tree['$unknown']}"
    elif isinstance(tree, dict) and "$skipped" in tree:
        yield path, f"skipped: {tree['$skipped']}"
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name not in FLEETING:
                yield from _leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(tree, list) and any(isinstance(value, dict) for value in tree):
        for name, value in _named(tree):
            yield from _leaves(value, f"{path}[{name}]")
    else:
        yield path, tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False)


def _named(entries: list[Any]) -> Iterator[tuple[str, Any]]:
    """Entries of a list by the name that they go by; one that comes again gets a number."""
    seen: dict[str, int] = {}
    for entry in entries:
        own = next((str(entry[key]) for key in KEYS if isinstance(entry, dict) and key in entry), "")
        seen[own] = seen.get(own, 0) + 1
        yield (own if seen[own] == 1 and own else f"{own}#{seen[own]}"), entry
