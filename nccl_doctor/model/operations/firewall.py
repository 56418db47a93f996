"""Operations on packet filters that allow TCP traffic between a host and its peers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nccl_doctor.model.operation import UNKNOWN, Operation, StateLines, in_turn
from nccl_doctor.text.shell import Line, argument, line, nested, script

ZONES, VENDOR_ZONES = "/etc/firewalld/zones", "/usr/lib/firewalld/zones"


@dataclass(frozen=True)
class _Allow(Operation):
    """An operation that makes a packet filter accept traffic between the host and its peers."""

    peers: tuple[str, ...]
    cuts_connection: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        """The command, with every peer's address replaced by the same placeholder."""
        peers = "|".join(map(re.escape, sorted(self.peers, key=len, reverse=True)))
        return re.sub(rf"(?<![\w.:])(?:{peers})(?![\w.:])", "PEER", str(self.line)) if peers else str(self.line)


@dataclass(frozen=True)
class FirewalldAllow(_Allow):
    """An operation that adds entries to firewalld's runtime or permanent configuration.

    The operation does not reload firewalld, because a reload would apply pending permanent changes and discard changes
    that were made only to the runtime configuration.

    Attributes:
        entries: pairs such as ("source", "10.0.0.2") or ("rich-rule", "rule family=…"), from which options such as
            ``--add-source=10.0.0.2`` are made.
        zone: name of the zone, or None for direct rules.
        direct: a direct rule's family, table, chain, priority and words, used instead of ``entries``.
    """

    permanent: bool
    zone: str | None = None
    entries: tuple[tuple[str, str], ...] = ()
    direct: tuple[str, ...] = ()

    @property
    def survives_reboot(self) -> bool:  # type: ignore[override]  # depends on the value
        return self.permanent

    @property
    def line(self) -> Line | None:
        """``firewall-cmd [--permanent] --zone=ZONE --add-source=PEER …``."""
        return self._call("add", range(max(1, len(self.entries))))

    @property
    def look(self) -> Line | None:
        """The command that prints, for each entry, "yes" if firewalld has the entry and "no" otherwise.

        The paths of the zone's existing files are printed as notes.
        """
        queries = [self._call("query", (place,)) for place in range(max(1, len(self.entries)))]
        asked = [
            query and script("{one}; [ $? -lt 2 ] || exit {unknown}", one=query, unknown=UNKNOWN) for query in queries
        ]
        kept = [line("[ ! -e {file} ] || echo {note}", file=file, note=f"#{file}") for file in self._files]
        return in_turn([*asked, *kept, script(":")])

    def holds(self, state: StateLines) -> bool:
        count = max(1, len(self.entries))
        return len(state) >= count and all(word == "yes" for word in state[:count])

    def undo(self, before: StateLines) -> Line | None:
        """Return the command line that removes the entries and zone files that did not exist before the operation.

        A zone file is kept if its content differs from the zone definition that firewalld ships in ``/usr/lib``.
        """
        count = max(1, len(self.entries))
        new = [place for place, word in enumerate(before[:count]) if word == "no"]
        if len(before) < count or not new:
            return None
        removal, made = self._call("remove", new), [file for file in self._files if f"#{file}" not in before]
        if not made or made[0] != self._files[0]:
            return removal
        unused = line("cmp -s {vendor} {file}", vendor=f"{VENDOR_ZONES}/{self.zone}.xml", file=made[0])
        gone = line("rm -f {*files}", files=made)
        return removal and unused and gone and script(
            "{removal} && {{ ! {unused} || {gone}; }}", removal=removal, unused=unused, gone=gone
        )  # fmt: skip

    @property
    def _files(self) -> tuple[str, ...]:
        """The zone's file, and firewalld's backup of the file's previous version."""
        file = f"{ZONES}/{self.zone}.xml"
        return (file, f"{file}.old") if self.permanent and self.zone is not None else ()

    def _call(self, verb: str, places: range | tuple[int, ...] | list[int]) -> Line | None:
        kept = script("--permanent" if self.permanent else "")
        if self.direct:
            words = _words(self.direct)
            return line("firewall-cmd {kept} --direct --{verb}-rule {words}", kept=kept, verb=verb, words=words)
        made = [line("--{verb}-{entry}", verb=verb, entry=self._entry(place)) for place in places]
        options = _blank(made)
        return line("firewall-cmd {kept} --zone={zone} {options}", kept=kept, zone=self.zone, options=options)

    def _entry(self, place: int) -> str:
        name, value = self.entries[place]
        return f"{name}={value}"


def _words(texts: tuple[str, ...]) -> Line | None:
    """Return the strings as shell words, or None if a string can't be pasted.

    A known option such as ``-s`` is safe in a command to paste, even though it begins with a hyphen.
    """
    return _blank([argument(text) if text in _OPTIONS else line("{word}", word=text) for text in texts])


def _blank(words: Sequence[Line | None]) -> Line | None:
    made = [word for word in words if word is not None]
    return script("{words}", words=made) if len(made) == len(words) else None


_OPTIONS = frozenset({"-s", "-d", "-p", "-m", "-j", "-t", "--dports", *map(str, range(-32769, 0))})
"""Words with a leading minus sign that occur in operations: options of iptables, and negative priorities."""


@dataclass(frozen=True)
class NftAllow(_Allow):
    """An operation that inserts a rule at the beginning of an nftables chain.

    The rule has a comment that identifies it.
    """

    family: str
    table: str
    chain: str
    match: tuple[str, ...]
    mark: str

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.family, self.table, self.chain

    @property
    def line(self) -> Line | None:
        """The command that inserts the rule unless the chain already contains it."""
        once = "nft list chain {*place} | grep -qF {mark} || nft insert rule {*place} {*match} comment '\"{mark}\"'"
        return line(once, place=self._place, match=self.match, mark=self.mark)

    @property
    def look(self) -> Line | None:
        """The command that prints the rules with this operation's comment.

        If the chain no longer exists, the command searches all tables.
        """
        listed = line("nft list chain {*place}", place=self._place)
        search = line("grep -F {mark}", mark=self.mark)
        return listed and search and script(
            "rules=$({listed} 2>/dev/null) || rules=$(nft list ruleset) || exit {unknown}; "
            "printf '%s\\n' \"$rules\" | {found}; :",
            listed=listed,
            unknown=UNKNOWN,
            found=search,
        )  # fmt: skip

    def holds(self, state: StateLines) -> bool:
        return bool(state)

    def undo(self, before: StateLines) -> Line | None:
        handle = nested(f"s/.*{self.mark}.* # handle \\([0-9]*\\)$/\\1/p")
        listed = line("nft -a list chain {*place}", place=self._place)
        deleted = line("nft delete rule {*place}", place=self._place)
        if before or listed is None or deleted is None:
            return None
        return script('{deleted} handle "$({listed} | sed -n {handle})"', deleted=deleted, listed=listed, handle=handle)


@dataclass(frozen=True)
class IptablesAllow(_Allow):
    """An operation that inserts a rule at the top of a built-in iptables chain.

    ``program`` is the iptables variant that wrote the existing rules.
    """

    program: str
    table: str
    chain: str
    match: tuple[str, ...]

    @property
    def line(self) -> Line | None:
        """The command that inserts the rule unless the chain already contains it."""
        look, insert = self._call("-C"), self._call("-I")
        return look and insert and script("{look} 2>/dev/null || {insert}", look=look, insert=insert)

    @property
    def look(self) -> Line | None:
        asked = self._call("-C")
        return asked and script(
            "{asked} 2>/dev/null; case $? in 0) echo present ;; 1) echo absent ;; *) exit {unknown} ;; esac",
            asked=asked,
            unknown=UNKNOWN,
        )

    @property
    def expected(self) -> StateLines:
        return ("present",)

    def undo(self, before: StateLines) -> Line | None:
        return self._call("-D") if before == ("absent",) else None

    def _call(self, verb: str) -> Line | None:
        table = script("") if self.table == "filter" else line("-t {table}", table=self.table)
        words = _words(self.match)
        holes = {"program": self.program, "table": table, "verb": argument(verb), "chain": self.chain, "words": words}
        return line("{program} -w {table} {verb} {chain} {words}", **holes)


@dataclass(frozen=True)
class UfwAllow(_Allow):
    """An operation that adds a ufw rule for one peer.

    If ``first`` is true, the rule is inserted before the user's own rules.
    """

    ports: str
    outgoing: bool
    first: bool
    survives_reboot: ClassVar[bool | None] = True

    @property
    def line(self) -> Line | None:
        """``ufw [prepend] allow proto tcp from PEER to any port PORTS``."""
        first = script("prepend" if self.first else "")
        return self._rule and line("ufw {first} {rule}", first=first, rule=self._rule)

    @property
    def look(self) -> Line | None:
        """The command that prints the ufw rules for the peer and the ports."""
        search = line("grep -wF {peer} | grep -wF {ports}", peer=self.peers[0], ports=f"port {self.ports}")
        return search and script(
            "rules=$(ufw show added) || exit {unknown}; printf '%s\\n' \"$rules\" | {found}; :",
            unknown=UNKNOWN,
            found=search,
        )

    def holds(self, state: StateLines) -> bool:
        end = f"to {self.peers[0]}" if self.outgoing else f"from {self.peers[0]}"
        wanted = {"ufw allow out" if self.outgoing else "ufw allow", end, f"port {self.ports}", "proto tcp"}
        return any(all(part in rule for part in wanted) for rule in state)

    def undo(self, before: StateLines) -> Line | None:
        return None if self.holds(before) or not self._rule else script("ufw delete {rule}", rule=self._rule)

    @property
    def _rule(self) -> Line | None:
        if self.outgoing:
            return line("allow out proto tcp from any to {peer} port {ports}", peer=self.peers[0], ports=self.ports)
        return line("allow proto tcp from {peer} to any port {ports}", peer=self.peers[0], ports=self.ports)
