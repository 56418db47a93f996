"""The screen of ``nccl-doctor ifname``: on each host the interface, why, and what to set."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_doctor.hostlist import fold
from nccl_doctor.model import NcclInterface
from nccl_doctor.report.safe import pasteable
from nccl_doctor.report.text import painter, table, wrap

NOTHING = "nothing"
NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Line:
    """One host; ``interface`` is None where NCCL finds none, or where nobody can tell (``known`` is then False)."""

    host: str
    interface: NcclInterface | None
    reason: str
    known: bool


@dataclass(frozen=True)
class Block:
    """Lines to paste, and the hosts that they are for; None means every host."""

    hosts: tuple[str, ...] | None
    lines: tuple[str, ...]


def ifname_screen(lines: Sequence[Line], blocks: Sequence[Block], width: int = 80, *, color: bool = False) -> str:
    """The table, hosts alike folded, then what to set, each command alone on its line, bold where there is colour."""
    paint = painter(color)
    text = table(("host", "NCCL uses", "why"), _folded(lines), width)
    for block in blocks:
        shown = [line for line in block.lines if pasteable(line)]
        if len(shown) < len(block.lines):
            text += ["", "What to set can't be shown safely here; -o json has it."]
            continue
        where = "every host" if block.hosts is None else fold(block.hosts)
        text += [
            "",
            *wrap(f"Set on {where}, or under env in the hosts file:", width),
            "",
            *(paint(line, "bold") for line in shown),
        ]
    return "\n".join(text) + "\n"


def _folded(lines: Sequence[Line]) -> Iterator[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        name = line.interface.name if line.interface else NOTHING if line.known else NOT_KNOWN
        groups.setdefault((name, line.reason), []).append(line)
    for (name, reason), members in groups.items():
        addresses = [member.interface.address for member in members if member.interface is not None]
        sources = {_source(member.interface) for member in members if member.interface is not None}
        uses = f"{name}  {_shared(addresses)}" if addresses else name
        said_by = f" ({', '.join(sorted(sources))})" if sources else ""
        yield fold([member.host for member in members]), uses, reason + said_by


def _source(interface: NcclInterface) -> str:
    """Who says so: the host's own libnccl, or our model where it could not be asked."""
    version = interface.nccl_version or "any version"
    return f"asked libnccl {version}" if interface.source == "libnccl" else f"model of NCCL {version}"


def _shared(addresses: Sequence[str]) -> str:
    """One address as it is; several by the part they share: ``10.0.0.x``, ``2001:db8::/64``."""
    if len(set(addresses)) == 1:
        return addresses[0]
    parsed = {ipaddress.ip_address(text.partition("%")[0]) for text in addresses}
    if all(address.version == 4 for address in parsed):
        parts = [str(address).split(".") for address in parsed]
        same = next((n for n in range(4) if len({tuple(part[: n + 1]) for part in parts}) > 1), 4)
        return ".".join(parts[0][:same] + ["x"] * (4 - same)) if same else "several"
    nets = {ipaddress.ip_network((address, 64 if address.version == 6 else 32), strict=False) for address in parsed}
    return str(nets.pop()) if len(nets) == 1 else "several"
