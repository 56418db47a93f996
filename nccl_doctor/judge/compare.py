"""What changed between two snapshots: facts, host by host. Pure.

What differs from one run to the next by its nature (times, sockets, ports the kernel chose, free memory) is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference
from nccl_doctor.snapshot import Host, Names, Snapshot

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
    """What changed between two snapshots: facts, and what is found in them."""
    old, new = ({(d.code, d.hosts): d for d in judge(one, "check").diagnoses} for one in (before, after))
    turned = DiagnosisChanges(
        gone=tuple(d for key, d in old.items() if key not in new),
        new=tuple(d for key, d in new.items() if key not in old),
    )
    return Difference(changes=changes(before, after), diagnoses=turned)


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """All changes, those of the cluster first; the same change on several hosts once."""
    cluster = [_change(one) for one in _differences(_cluster(before), _cluster(after))]
    old = {host.name: host for host in before.hosts}
    new = {host.name: host for host in after.hosts}
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys([*old, *new]):
        both = old.get(name), new.get(name)
        names = {told for host in both if host is not None for told in _own_names(host)}
        for one in _differences(*(_host(host, names) for host in both)):
            hosts.setdefault(one, []).append(name)
    return (*cluster, *(_change(one, names) for one, names in hosts.items()))


def _change(one: tuple[str, str, str], hosts: Iterable[str] = ()) -> Change:
    what, before, after = one
    return Change(what=what, before=before, after=after, hosts=tuple(hosts))


def _cluster(snapshot: Snapshot) -> dict[str, str]:
    tree = {
        "master_addr": snapshot.cluster.master_addr,
        "master_port": snapshot.cluster.master_port,
        "same": list(snapshot.cluster.same),
        "nccl-doctor": snapshot.version,
        "names": {name: told.model_dump(mode="json") for name, told in snapshot.names.items()},
    }
    return dict(_leaves(tree, ""))


def _own_names(host: Host) -> Iterator[str]:
    """What this host alone makes something of."""
    if host.facts is not None and isinstance(host.facts.resolution, Names):
        yield from host.facts.resolution.own


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
        told = {name: resolved.get(name) for name in sorted(names)}
        tree["resolution"] = {name: one.model_dump(mode="json") for name, one in told.items() if one is not None}
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
