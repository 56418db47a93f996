"""The text that ``nft -a list ruleset`` prints, for people: a rule's own words by its handle."""

from __future__ import annotations

import re

_TABLE = re.compile(r"^table (\S+) (.+?) \{")
_CHAIN = re.compile(r"^\tchain (.+?) \{")
_HANDLE = re.compile(r" # handle (\d+)$")

RuleKey = tuple[str, str, str, int]
"""Family, table, chain, handle."""


def rule_texts(text: str) -> dict[RuleKey, str]:
    """Each rule's text without its handle; one that spans lines is joined."""
    texts: dict[RuleKey, str] = {}
    family = table = chain = ""
    pending: list[str] = []
    for line in text.splitlines():
        if found := _TABLE.match(line):
            family, table, chain = found[1], found[2], ""
        elif found := _CHAIN.match(line):
            chain, pending = found[1], []
        elif chain and line == "\t}":
            chain = ""
        elif chain and not line.lstrip().startswith("type "):
            pending.append(line.strip())
            if found := _HANDLE.search(line):
                texts[family, table, chain, int(found[1])] = _HANDLE.sub("", " ".join(pending))
                pending = []
    return texts


def dormant(text: str) -> frozenset[tuple[str, str]]:
    """Family and name of the tables that are switched off; nft 1.0.6 garbles that flag in JSON."""
    found: set[tuple[str, str]] = set()
    here = ("", "")
    for line in text.splitlines():
        if table := _TABLE.match(line):
            here = (table[1], table[2])
        elif re.match(r"^\tflags .*\bdormant\b", line):
            found.add(here)
    return frozenset(found)
