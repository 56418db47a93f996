"""Two hosts see different addresses for the same name.

What it means: ranks that look up the master by name end at different machines, or at addresses that they can't reach:
some hosts join, the others wait until their time-out. Mostly one host's /etc/hosts is out of date.

How we know: each host resolved every name of the cluster; a name is at fault where two hosts' answers have no address
in common. What a host's own /etc/hosts says of its own name on loopback is another diagnosis (hostname-loopback).

Fix: make /etc/hosts the same on all hosts, or use IP addresses in the hosts file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nccl_doctor.hostlist import fold, quoted
from nccl_doctor.model import Finding, Fix, Severity
from nccl_doctor.registry import Unjudged, View, check
from nccl_doctor.snapshot import Mesh


@check(
    "NCD205",
    severity=Severity.WARNING,
    needs=("resolution",),
    explains=("port-unreachable", "allreduce-failed", "allreduce-timeout", "master-addr-not-local"),
)
def hostname_mismatch(view: View) -> Iterator[Finding | Unjudged]:
    """One finding for each name with its column of the matrix; an error for the master's name."""
    names = dict.fromkeys(
        name for _, facts in view.facts if isinstance(facts.resolution, dict) for name in facts.resolution
    )
    for name in names:
        column: dict[str, tuple[str, ...]] = {}
        for host, facts in view.facts:
            resolution = facts.resolution.get(name) if isinstance(facts.resolution, dict) else None
            told = resolution.addresses if resolution is not None else ()
            real = tuple(sorted(address for address in told if not address.startswith("127.") and address != "::1"))
            if real:
                column[host.name] = real
        common, _ = Counter(column.values()).most_common(1)[0] if column else ((), 0)
        odd = tuple(host for host, real in column.items() if not set(real) & set(common))
        if odd:
            yield _finding(view, name, column, odd)


def _failed(view: View, name: str, odd: tuple[str, ...]) -> list[dict[str, str]]:
    """The pairs between which only those dials failed that these hosts made by this name."""
    dials = view.snapshot.mesh.failed if isinstance(view.snapshot.mesh, Mesh) else ()
    by_name = {(dial.src, dial.dst) for dial in dials if dial.src in odd and dial.address == name}
    otherwise = {(dial.src, dial.dst) for dial in dials if dial.address != name}
    return [{"src": src, "dst": dst} for src, dst in sorted(by_name - otherwise)]


def _finding(view: View, name: str, column: dict[str, tuple[str, ...]], odd: tuple[str, ...]) -> Finding:
    is_master = name == view.snapshot.cluster.master_addr
    by_answer: dict[tuple[str, ...], list[str]] = {}
    for host, real in column.items():
        by_answer.setdefault(real, []).append(host)
    return Finding(
        hosts=odd,
        message=f"{fold(odd)} and the other hosts see different addresses for {quoted(name)}.",
        evidence=tuple(f"{fold(hosts)}: {quoted(name)} is {', '.join(real)}" for real, hosts in by_answer.items()),
        facts={
            "name": name,
            "is_master": is_master,
            "matrix": {host: list(real) for host, real in column.items()},
            "failed": _failed(view, name, odd),
        },
        fix=Fix(summary="Make /etc/hosts the same on all hosts, or use IP addresses in the hosts file."),
        severity=Severity.ERROR if is_master else None,
    )
