"""Reads known_hosts files, whose format sshd(8) describes in the section "SSH_KNOWN_HOSTS FILE FORMAT".

Host keys are checked by the rules of ``check_key_in_hostkeys`` in OpenSSH's hostfile.c. If a host name has entries
without a marker and none of these entries contains the presented key, the key counts as changed. The presented key
counts as changed even if all listed keys of the host have other types.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Marker = Literal["", "@cert-authority", "@revoked"]


@dataclass(frozen=True)
class KnownKey:
    """An entry in a known_hosts file.

    ``line`` is the line number, starting at 1, and ``key`` is encoded as in the SSH protocol.
    """

    path: Path
    line: int
    marker: Marker
    patterns: str
    key_type: str
    key: bytes


@dataclass(frozen=True)
class KeyMatch:
    """The result of checking a host key, and the known_hosts entry that led to the result."""

    outcome: Literal["known", "unknown", "changed", "revoked"]
    by: KnownKey | None = None


class KnownKeys:
    """The entries of known_hosts files in their original order, indexed by host name.

    The index makes look-ups fast even if a known_hosts file has a line for each host of a large cluster.
    """

    def __init__(self, entries: Iterable[KnownKey]) -> None:
        self._entries = tuple(entries)
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._patterns: list[int] = []
        for place, entry in enumerate(self._entries):
            if any(sign in entry.patterns for sign in "|*?!"):
                self._patterns.append(place)
            else:
                for word in set(entry.patterns.lower().split(",")):
                    self._places[word].append(place)

    def matching(self, name: str) -> tuple[KnownKey, ...]:
        by_pattern = [place for place in self._patterns if _matches(self._entries[place].patterns, name)]
        return tuple(self._entries[place] for place in sorted((*self._places.get(name, ()), *by_pattern)))

    def has_authority(self, name: str) -> bool:
        """Return whether a certificate authority is listed for a host name.

        Only the ssh program can verify host certificates.
        """
        names = (name, _portless(name))
        return any(entry.marker == "@cert-authority" for each in names if each for entry in self.matching(each))


def read(paths: Iterable[Path]) -> KnownKeys:
    """Return the entries of all readable files in file order, ignoring invalid lines as OpenSSH does."""
    entries: list[KnownKey] = []
    for path in paths:
        try:
            text = path.read_text("utf-8", errors="replace")
        except OSError:
            continue
        entries.extend(parse(path, text))
    return KnownKeys(entries)


def parse(path: Path, text: str) -> Iterator[KnownKey]:
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        marker: Marker = ""
        if fields and fields[0] in ("@cert-authority", "@revoked"):
            marker = "@revoked" if fields.pop(0) == "@revoked" else "@cert-authority"
        if len(fields) < 3 or fields[0].startswith(("#", "@")):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        if key_type(key) == fields[1]:
            yield KnownKey(path, number, marker, fields[0], fields[1], key)


def entry_name(hostname: str, port: int, alias: str | None = None) -> str:
    """Return the name under which known_hosts files list a host.

    The name includes the port unless the port is 22 or an alias (HostKeyAlias) is set.
    """
    if alias:
        return alias.lower()
    return hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"


def match_key(entries: KnownKeys, name: str, key: bytes) -> KeyMatch:
    """Compare ``key`` with the known keys for ``name`` (:func:`entry_name`) and return the result.

    If ``name`` includes a port, an entry without a port can confirm or revoke the key, but never causes the key to
    count as changed.
    """
    there = entries.matching(name)
    for entry in there:
        if entry.marker == "@revoked" and entry.key == key:
            return KeyMatch("revoked", entry)
    plain = [entry for entry in there if not entry.marker]
    for entry in plain:
        if entry.key == key:
            return KeyMatch("known", entry)
    if plain:
        kind = key_type(key)
        return KeyMatch("changed", next((entry for entry in plain if entry.key_type == kind), plain[0]))
    portless = _portless(name)
    there_too = match_key(entries, portless, key) if portless else KeyMatch("unknown")
    return there_too if there_too.outcome in ("known", "revoked") else KeyMatch("unknown")


def _portless(name: str) -> str | None:
    return name[1:].rpartition("]:")[0] if name.startswith("[") else None


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint as ``ssh-keygen -l`` prints it, with unpadded base64 after the prefix "SHA256:"."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def key_type(key: bytes) -> str:
    """Return the type of an encoded key, such as "ssh-ed25519" (RFC 4253, section 6.6), or "" for an invalid key."""
    length = int.from_bytes(key[:4], "big")
    return key[4 : 4 + length].decode("ascii", errors="replace") if len(key) >= 4 + length else ""


def line_for(name: str, key: bytes) -> str:
    return f"{name} {key_type(key)} {base64.b64encode(key).decode()}"


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):  # |1|salt|HMAC-SHA1 of the name (HashKnownHosts)
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in patterns[3:].split("|"))
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
    words = patterns.lower().split(",")
    if any(word.startswith("!") and _glob(word[1:], name) for word in words):
        return False
    return any(_glob(word, name) for word in words if not word.startswith("!"))


def _glob(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name.

    Only * and ? are wildcards, because brackets enclose a host name with a port.
    """
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
