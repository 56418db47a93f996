"""A name that the job uses does not resolve on a host.

What it means: every rank looks up the master address; where that fails it ends with "The IPv4 network addresses of (…)
cannot be retrieved (gai error: -2 - Name or service not known)". A host that can't resolve its own name makes gloo fall
back to 127.0.0.1, which the others can't reach (hostname-loopback tells when gloo needs them to).

How we know: getaddrinfo(3) on each host for the master address, for every host's address in the hosts file, and for
the host's own name.

Fix: add the name to the DNS or to /etc/hosts, or use IP addresses in the hosts file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address

from nccl_doctor import confirmed
from nccl_doctor.checks.own_names import CHANCE, finding, is_without_gpus, own_names
from nccl_doctor.commands import on
from nccl_doctor.confirmed import Address
from nccl_doctor.hostlist import fold, quoted
from nccl_doctor.model import Finding, Fix, Severity
from nccl_doctor.registry import Unjudged, View, check
from nccl_doctor.shell import Line, line
from nccl_doctor.snapshot import Resolution, Snapshot, deviations, known

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


@check(
    "NCD204",
    severity=Severity.WARNING,
    needs=("resolution", "identity", "interfaces", "env"),
    explains=("allreduce-failed", "allreduce-timeout", "master-addr-not-local"),
    in_logs=("port-in-use", "ssh-unreachable"),
)
def hostname_unresolvable(view: View) -> Iterator[Finding | Unjudged]:
    """One finding for each name: an error for the master's, or a host's own where gloo must do. One for the rest."""
    cluster = view.snapshot.cluster
    resolved = {host.name: known(facts.resolution) for host, facts in view.facts}
    common = next(iter(resolved.values())).common if resolved else {}
    lost_on = {name for name, told in deviations(resolved).items() if any(not one.addresses for one in told.values())}
    lost_on |= {name for name, told in common.items() if not told.addresses}
    own = [one for one in own_names(view) if not one.resolution.addresses]
    names = dict.fromkeys((cluster.master_addr, *(node.address for node in cluster.nodes)))
    for name in names:
        if name in lost_on:
            seen = {host: told for host, one in resolved.items() if (told := one.get(name)) is not None}
            lost = {host: told for host, told in seen.items() if not told.addresses}
            fails = is_without_gpus(view) and any(one.name == name and one.lost for one in own)
            is_fatal = name == cluster.master_addr or fails
            yield _finding(name, lost, seen, view.snapshot, is_fatal=is_fatal)
    caught = [one for one in own if one.name not in names]
    if caught:
        hosts = tuple(one.host for one in caught)
        what = "gloo falls back to 127.0.0.1" if any(one.lost for one in caught) else CHANCE
        yield finding(view, caught, f"{fold(hosts)} can't resolve the host's own name: {what}.")


def _finding(
    name: str, lost: dict[str, Resolution], seen: dict[str, Resolution], snapshot: Snapshot, *, is_fatal: bool
) -> Finding:
    told = {address for resolution in seen.values() for address in resolution.addresses}
    told.update(snapshot.resolved.get(name, ()))
    lines = {host: _line(name, told, confirmed.of_name(snapshot, name, host)) for host in lost}
    commands = tuple(one for host in lost for one in on(host, lines[host])) if all(lines.values()) else ()
    return Finding(
        hosts=tuple(lost),
        message=f"The name {quoted(name)} does not resolve on {fold(lost)}.",
        evidence=tuple(f"{host}: {quoted(name)}: {resolution.error}" for host, resolution in lost.items()),
        facts={"name": name},
        fix=Fix(
            summary="Add the name to the DNS or to /etc/hosts, or use IP addresses in the hosts file.",
            risk="safe" if commands else "manual",
            needs_root=bool(commands),
            commands=commands,
        ),
        severity=Severity.ERROR if is_fatal else None,
    )


def _line(name: str, told: Iterable[str], sure: frozenset[Address]) -> Line | None:
    """The entry for /etc/hosts; None where no single address is meant, or only other hosts' word says which."""
    found = sure & {confirmed.numeric(text) for text in told}
    known: list[Address] = [address for address in found if isinstance(address, IPv4Address)]
    known = known or [*found]
    if len(known) != 1 or not _NAME.fullmatch(name):
        return None
    return line("printf '%s %s\\n' {address} {name} >> /etc/hosts", address=known[0], name=name)
