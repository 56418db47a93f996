"""The packet filters of this host, as their own tools print them: snapshot.FirewallFacts in JSON form.

Nothing is changed, no kernel module is loaded: iptables is asked only for tables that exist already. Only root may read
rules (:mod:`nccl_doctor.probe.as_root`).
"""

from __future__ import annotations

import os
from typing import Any, Callable

from nccl_doctor.probe import as_root
from nccl_doctor.probe.as_root import Root
from nccl_doctor.probe.unavailable import Unavailable

FIREWALLD_DOWN = 252
"""NOT_RUNNING: firewall-cmd's exit status where the daemon is not there (firewall/errors.py of firewalld)."""
XTABLES = ('"xt"', '"PREROUTING"', '"INPUT"', '"OUTPUT"', '"POSTROUTING"')
"""What betrays that iptables-nft wrote a table; nft can't show all of such a rule."""
FIREWALLD = ("firewalld", "_ZONES", "_direct")
"""The table of its nftables back end, and chains of its iptables one (firewall/core/nftables.py, ipXtables.py)."""
UFW = ("ufw-", "ufw6-")
"""How ufw's chains begin (/usr/share/ufw)."""
RULES = ('"table"', '"chain"', '"rule"')
"""What every rule set that does something holds in nft's JSON."""
NF_TABLES = "/sys/module/nf_tables"
LEGACY_TABLES = {"ip": "/proc/net/ip_tables_names", "ip6": "/proc/net/ip6_tables_names"}
"""Which tables of the kernel's own x_tables there are; only root may read it."""

Reader = Callable[[], object]


def collect(deadline: float, sudo: bool = True, again: bool = False) -> dict[str, object]:
    """All packet filters of this host.

    Args:
        deadline: on the clock of ``time.monotonic``.
        sudo: whether ``sudo -n`` may be tried where we are not root.
        again: for the counters alone: nobody but the kernel is asked.

    Returns:
        The fields of snapshot.FirewallFacts; one that can't be had is ``{"$unknown": reason}``.

    Raises:
        Unavailable: rules may not be read at all.
    """
    root = Root(deadline, sudo)
    nft = _part(lambda: _nft(root, "-j"))
    hidden = not isinstance(nft, str) or any(sign in nft for sign in XTABLES)
    iptables = _part(lambda: _iptables(root, hidden))
    brief = again or (isinstance(nft, str) and not any(sign in nft for sign in RULES) and iptables == [])
    wants_sets = not again and isinstance(iptables, list) and any("--match-set" in save["text"] for save in iptables)
    return {
        "nft": nft,
        "nft_text": _part(lambda: None if brief else _nft(root, "-a")),
        "iptables": iptables,
        "ipsets": _part(lambda: root.output("ipset", "save") if wants_sets else None),
        "firewalld": _part(
            lambda: _firewalld(root, iptables) if not brief and _signed(FIREWALLD, nft, iptables) else None
        ),
        "ufw": _part(lambda: _ufw(root) if not brief and _signed(UFW, nft, iptables) else None),
        "docker": os.path.exists("/var/run/docker.sock") or os.path.exists("/sys/class/net/docker0"),
        "groups": {name: int(_read("/sys/class/net/%s/netdev_group" % name) or 0) for name in _interfaces()},
        "bridges": [name for name in _interfaces() if os.path.isdir("/sys/class/net/%s/bridge" % name)],
    }


def _signed(signs: tuple[str, ...], nft: object, iptables: object) -> bool:
    """Whether a manager's own names stand in the rules, or rules could not be read.

    One that runs has its chains in force; else there is nobody to ask, and each is a Python program of 100 ms or more.
    """
    if not isinstance(nft, str) or not isinstance(iptables, list):
        return True
    return any(sign in text for text in (nft, *(save["text"] for save in iptables)) for sign in signs)


def _part(reader: Reader) -> object:
    try:
        return reader()
    except Unavailable as error:
        return {"$unknown": str(error)}


def _nft(root: Root, form: str) -> str | None:
    if as_root.find("nft"):
        return root.output("nft", form, "list", "ruleset")
    if not os.path.exists(NF_TABLES):
        return None
    raise Unavailable("nft is not installed, though the kernel has nf_tables")


def _iptables(root: Root, hidden: bool) -> list[dict[str, Any]]:
    """Every table that exists.

    Args:
        root: to run programs.
        hidden: iptables-nft wrote some.
    """
    saves: list[dict[str, Any]] = []
    for family, tables in LEGACY_TABLES.items():
        if os.path.exists(tables) and root.output("cat", tables).strip():
            saves.append(_save(root, family, "legacy"))
        if hidden and _program(root, family, "nft"):
            saves.append(_save(root, family, "nft"))
    return saves


def _save(root: Root, family: str, backend: str) -> dict[str, Any]:
    program = _program(root, family, backend)
    if program is None:
        raise Unavailable("no %stables of the %s kind is installed to show its rules" % (family, backend))
    return {"command": program, "family": family, "backend": backend, "text": root.output(program + "-save", "-c")}


def _program(root: Root, family: str, backend: str) -> str | None:
    """The iptables of a back end: by its own name, or the plain one where it is of that kind."""
    plain = family + "tables"
    named = "%s-%s" % (plain, backend)
    if as_root.find(named + "-save"):
        return named
    if as_root.find(plain + "-save") is None:
        return None
    kind = "nft" if "nf_tables" in root.output(plain, "--version") else "legacy"
    return plain if kind == backend else None


def _firewalld(root: Root, iptables: object) -> dict[str, str] | None:
    if as_root.find("firewall-cmd") is None:
        return None
    status, zone, complaint = root.attempt(["firewall-cmd", "--get-default-zone"])
    if status == FIREWALLD_DOWN:
        return None
    if status:
        raise Unavailable("firewall-cmd: " + " ".join(complaint.split())[:200])
    return {
        "default_zone": zone.strip(),
        "runtime": root.output("firewall-cmd", "--list-all-zones"),
        "permanent": root.output("firewall-cmd", "--permanent", "--list-all-zones"),
        # they are iptables' in the kernel, whatever the back end is
        "direct": root.output("firewall-cmd", "--direct", "--get-all-rules") if iptables != [] else "",
    }


def _ufw(root: Root) -> str | None:
    if as_root.find("ufw") is None:
        return None
    status = root.output("ufw", "status", "verbose")
    return None if "Status: inactive" in status else status


def _interfaces() -> list[str]:
    try:
        return sorted(os.listdir("/sys/class/net"))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
