"""The screen of ``nccl-doctor ifname``: on each host the interface, why, and what to set."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from nccl_doctor.model.documents import InterfaceAnswer, InterfaceAnswers
from nccl_doctor.model.report import NcclInterface
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.safe import pasteable
from nccl_doctor.report.text import painter, table, wrap
from nccl_doctor.text.hostlist import fold

NOTHING = "nothing"
NOT_KNOWN = "not known"


def render(answers: InterfaceAnswers, options: RenderOptions) -> str:
    """The table, hosts alike folded, then what to set, each command alone on its line, bold where there is colour."""
    paint, width = painter(options.color), options.width
    text = table(("host", "NCCL uses", "why"), _folded(answers.hosts), width)
    for block in answers.exports:
        shown = [line for line in block.lines if pasteable(line)]
        if len(shown) < len(block.lines):
            text += ["", "What to set can't be shown safely here; -o json has it."]
            continue
        where = "every host" if block.hosts is None else fold(block.hosts)
        text += [
            "",
            *wrap(
                f"Set on {where}{f' ({block.place})' if block.place else ''}, or under env in the hosts file:", width
            ),
            "",
            *(paint(line, "bold") for line in shown),
        ]
    return "\n".join(text) + "\n"


def _folded(answers: Sequence[InterfaceAnswer]) -> Iterator[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[InterfaceAnswer]] = {}
    for one in answers:
        name = one.nccl_interface.name if one.nccl_interface else NOTHING if one.known else NOT_KNOWN
        groups.setdefault((name, one.reason), []).append(one)
    for (name, reason), members in groups.items():
        chosen = [member.nccl_interface for member in members if member.nccl_interface is not None]
        addresses = [interface.address for interface in chosen]
        sources = {_source(interface) for interface in chosen}
        uses = f"{name}  {_shared(addresses)}" if addresses else name
        said_by = f" ({', '.join(sorted(sources))})" if sources else ""
        yield fold([member.name for member in members]), uses, reason + said_by


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
