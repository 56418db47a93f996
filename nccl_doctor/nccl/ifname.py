"""The answer of ``nccl-doctor ifname``: on each host the interface, why, and what to set."""

from __future__ import annotations

from nccl_doctor.model.documents import Exports, InterfaceAnswer, InterfaceAnswers
from nccl_doctor.model.finding import export
from nccl_doctor.nccl.cluster_nccl import ClusterNccl
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl
from nccl_doctor.nccl.interfaces import Failure
from nccl_doctor.nccl.reach import Reachable
from nccl_doctor.nccl.suggest import Suggestion
from nccl_doctor.nccl.versions import Version
from nccl_doctor.snapshot import Snapshot, Unknown
from nccl_doctor.text.hostlist import fold


def answers(snapshot: Snapshot, version: Version | None = None) -> InterfaceAnswers:
    """An answer for each host of the cluster, in its order, and what to set.

    Args:
        snapshot: the port mesh may be missing; then routes alone tell who reaches whom.
        version: answer as this NCCL would; each host's own where None.
    """
    seen = {host.name: host_nccl(host, version=version) for host in snapshot.reached}
    known = {name: one for name, one in seen.items() if isinstance(one, HostNccl)}
    nccl = ClusterNccl(snapshot, known, {name: one.reason for name, one in seen.items() if isinstance(one, Unknown)})
    trouble = any(_trouble(nccl, name) is not None for name in known)
    suggestion = nccl.suggestion if trouble else None
    found = tuple(_answer(nccl, host.name, suggestion) for host in snapshot.hosts)
    return InterfaceAnswers(hosts=found, exports=_exports(found))


def _answer(nccl: ClusterNccl, host: str, suggestion: Suggestion | None) -> InterfaceAnswer:
    one = nccl.by_host.get(host)
    if one is None:
        why = f"not known: {nccl.unknown.get(host, 'the host was not reached')}"
        return InterfaceAnswer(name=host, nccl_interface=None, reason=why, known=False)
    to_set = suggestion.variables(host) if suggestion is not None else {}
    bootstrap = one.choice.bootstrap
    if isinstance(bootstrap, Failure):
        why = f"{bootstrap.reason}: NCCL ends with {bootstrap.words!r}"
        return InterfaceAnswer(name=host, nccl_interface=None, reason=why, set=to_set)
    trouble = _trouble(nccl, host)
    reason = bootstrap.reason
    if one.disagreement is not None:
        reason = one.disagreement if one.source == "libnccl" else f"{reason}, but {one.disagreement}"
    if trouble is not None:
        better = suggestion.interfaces[host] if suggestion is not None else None
        rivals = [use.name for use in one.choice.net_socket if use.name == better]
        if rivals and rivals != [bootstrap.name] and nccl.wanted(host) is None and one.disagreement is None:
            reason = f"comes before {rivals[0]} in the kernel's order"
        reason = f"{reason}; {trouble}"
    return InterfaceAnswer(name=host, nccl_interface=one.summary, reason=reason, set=to_set)


def _trouble(nccl: ClusterNccl, host: str) -> str | None:
    """Why the host's choice does not serve; None where it does or nobody can tell."""
    one = nccl.by_host[host]
    if one.chosen is None:
        return "NCCL finds no interface"
    if nccl.is_idle(host):
        return f"{one.chosen.name} is not running"
    alone = len(nccl.snapshot.hosts) == 1
    link = one.link(one.chosen.name)
    if alone and link is not None and "loopback" in link.flags and len(one.interfaces.links) > 1:
        return "no other host could reach it"
    standing = nccl.bootstrap[host]
    if standing.is_lost:
        unsure = any(verdict.answer is Reachable.UNSURE for verdict in standing.verdicts)
        why, sources = next(iter(standing.reasons(Reachable.NO).items()))
        return f"{fold(sources)}: {why}" if unsure else "no other host can reach it"
    lost = nccl.lost_devices(host)
    if lost:
        return f"NET/Socket also uses {', '.join(use.name for use in lost)}, which no other host can reach"
    return None


def _exports(found: tuple[InterfaceAnswer, ...]) -> tuple[Exports, ...]:
    """What to paste: one block for all hosts where the same serves them all, else one for each setting."""
    by_setting: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        if one.set:
            lines = tuple(str(made) for name, value in one.set.items() if (made := export(name, value)))
            by_setting.setdefault(lines, []).append(one.name)
    if len(by_setting) == 1:
        return (Exports(hosts=None, lines=next(iter(by_setting))),)
    return tuple(Exports(hosts=tuple(hosts), lines=lines) for lines, hosts in by_setting.items())
