"""The answer of ``nccl-doctor ifname``: on each host the interface, why, and what to set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nccl_doctor.hostlist import fold
from nccl_doctor.model import NcclInterface
from nccl_doctor.nccl.interfaces import Failure
from nccl_doctor.nccl.picture import Picture, picture
from nccl_doctor.nccl.reach import Answer
from nccl_doctor.nccl.suggest import Suggestion, export
from nccl_doctor.nccl.survey import Survey
from nccl_doctor.nccl.versions import Version
from nccl_doctor.snapshot import Snapshot, Unknown


@dataclass(frozen=True)
class Row:
    """One host.

    Attributes:
        interface: None where NCCL finds none, or where nobody can tell.
        reason: one sentence.
        known: False where the choice could not be told; the reason says why.
        set: variables to set there; empty where NCCL's own choice serves.
    """

    host: str
    interface: NcclInterface | None
    reason: str
    known: bool = True
    set: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The row as ``-o json`` prints it."""
        shown = self.interface.model_dump() if self.interface is not None else None
        return {"name": self.host, "nccl_interface": shown, "reason": self.reason, "set": dict(self.set)}


@dataclass(frozen=True)
class Exports:
    """Lines to paste, and where: on every host, or on those that are named."""

    hosts: tuple[str, ...] | None
    lines: tuple[str, ...]


def rows(snapshot: Snapshot, version: Version | None = None) -> tuple[Row, ...]:
    """A row for each host of the cluster, in its order.

    Args:
        snapshot: the port mesh may be missing; then routes alone tell who reaches whom.
        version: answer as this NCCL would; each host's own where None.
    """
    seen = {host.name: picture(host, version=version) for host in snapshot.reached}
    known = {name: one for name, one in seen.items() if isinstance(one, Picture)}
    lot = Survey(snapshot, known, {name: one.reason for name, one in seen.items() if isinstance(one, Unknown)})
    trouble = any(_trouble(lot, name) is not None for name in known)
    suggestion = lot.suggestion if trouble else None
    return tuple(_row(lot, host.name, suggestion) for host in snapshot.hosts)


def _row(lot: Survey, host: str, suggestion: Suggestion | None) -> Row:
    one = lot.pictures.get(host)
    if one is None:
        return Row(host, None, f"not known: {lot.unknown.get(host, 'the host was not reached')}", known=False)
    to_set = suggestion.variables(host) if suggestion is not None else {}
    bootstrap = one.choice.bootstrap
    if isinstance(bootstrap, Failure):
        return Row(host, None, f"{bootstrap.reason}: NCCL ends with {bootstrap.words!r}", set=to_set)
    trouble = _trouble(lot, host)
    reason = bootstrap.reason
    if one.disagreement is not None:
        reason = one.disagreement if one.source == "libnccl" else f"{reason}, but {one.disagreement}"
    if trouble is not None:
        better = suggestion.interfaces[host] if suggestion is not None else None
        rivals = [use.name for use in one.choice.net_socket if use.name == better]
        if rivals and rivals != [bootstrap.name] and lot.wanted(host) is None and one.disagreement is None:
            reason = f"comes before {rivals[0]} in the kernel's order"
        reason = f"{reason}; {trouble}"
    return Row(host, one.summary, reason, set=to_set)


def _trouble(lot: Survey, host: str) -> str | None:
    """Why the host's choice does not serve; None where it does or nobody can tell."""
    one = lot.pictures[host]
    if one.chosen is None:
        return "NCCL finds no interface"
    if lot.is_idle(host):
        return f"{one.chosen.name} is not running"
    alone = len(lot.snapshot.hosts) == 1
    link = one.link(one.chosen.name)
    if alone and link is not None and "loopback" in link.flags and len(one.interfaces.links) > 1:
        return "no other host could reach it"
    standing = lot.bootstrap[host]
    if standing.is_lost:
        unsure = any(verdict.answer is Answer.UNSURE for verdict in standing.verdicts)
        why, sources = next(iter(standing.reasons(Answer.NO).items()))
        return f"{fold(sources)}: {why}" if unsure else "no other host can reach it"
    lost = lot.lost_devices(host)
    if lost:
        return f"NET/Socket also uses {', '.join(use.name for use in lost)}, which no other host can reach"
    return None


def exports(rows: tuple[Row, ...]) -> tuple[Exports, ...]:
    """What to paste: one block for all hosts where the same serves them all, else one for each setting."""
    by_setting: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.set:
            lines = tuple(export(name, value) for name, value in row.set.items())
            by_setting.setdefault(lines, []).append(row.host)
    if len(by_setting) == 1:
        return (Exports(None, next(iter(by_setting))),)
    return tuple(Exports(tuple(hosts), lines) for lines, hosts in by_setting.items())
