"""Known warnings of NCCL and RCCL, and known error messages about TCP ports.

``messages.json`` contains the WARN texts from NVIDIA/nccl at 62 tags (2.3.5 to 2.30.7), grouped by diagnosis. Each text
in ``messages.json`` is a printf template with the first and the last tag that contain the template. The group
``benign`` contains messages after which NCCL continues normally. The group ``nccl-unknown-error`` contains messages
about problems that only NCCL's developers can solve. ``rccl_messages.json`` contains messages that only RCCL prints,
grouped by diagnosis but without release numbers. The messages of RCCL come from src/init.cc, rccl_wrap.cc, misc, graph
and transport in projects/rccl of ROCm/rocm-systems as of 2026-11. RCCL prints some errors without a level such as WARN,
in the form ``host:pid:tid [dev] [FATAL ERROR]: text`` (src/debug.cc). torch prints one of the following messages if it
can't listen on a port. The messages are listed by torch version (socket.cpp and TCPStoreLibUvBackend.cpp in
torch/csrc/distributed/c10d):

- up to 1.10: ``RuntimeError: Address already in use``, without the port
- 1.11: ``The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).``, also with
  ``0.0.0.0`` or ``?UNKNOWN?`` as the address, or with errno 13 if only root may bind the port
- 2.1: ``listen fd 5 is bound to port 29501, expected to be bound to port 29500``
- 2.2 with libuv, the default since 2.4: ``useIpv6: 0, code: -98, name: EADDRINUSE``, without the port
- - 2.7: ``port: 29500, useIpv6: false, code: -98, name: EADDRINUSE``, with code -48 on macOS

NCCL's own ``Call to bind failed`` message does not concern the port on which torch listens. NCCL asks the kernel for
any free port (src/misc/socket.cc), so NCCL's call to bind(2) fails if the ephemeral ports are exhausted.
"""

from __future__ import annotations

import heapq
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from nccl_doctor.text.bounds import safe_regex

_PLACE = re.compile(r"%(?:[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j|t)?([diouxXcspfgem%])")
_PLACES = {"d": r"-?\d+", "i": r"-?\d+", "u": r"\d+", "x": r"[0-9a-fA-F]+", "X": r"[0-9a-fA-F]+", "o": r"[0-7]+"}
_WORD = re.compile(r"[A-Za-z0-9_]+")
_LEAST = 8  # a template needs a literal part of this length, otherwise it would match any text


@dataclass(frozen=True)
class Meaning:
    """A known warning, its diagnosis or group, and the first and last NCCL releases that contain the warning.

    A release is "" if it is unknown.
    """

    name: str
    template: str
    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class _Entry:
    meaning: Meaning
    plain: str
    pattern: str


@lru_cache(2048)
def meaning(text: str) -> Meaning | None:
    """Return the meaning of a message after ``NCCL WARN`` or ``Last error:``, or None if the meaning is unknown."""
    by_word = _entries()
    words = {"", *_WORD.findall(text)}
    for _, entry in heapq.merge(*(by_word[word] for word in words if word in by_word), key=lambda pair: pair[0]):
        if entry.plain in text and safe_regex(entry.pattern).search(text):
            return entry.meaning
    return None


@cache
def _entries() -> dict[str, list[tuple[int, _Entry]]]:
    """Return the known warnings, keyed by a word that every matching text contains, or by "" if no such word exists.

    Each warning is paired with its position in the matching order.
    """
    long_enough = (entry for entry in map(_entry, catalogue()) if len(entry.plain) >= _LEAST)
    by_word: dict[str, list[tuple[int, _Entry]]] = {}
    ordered = sorted(long_enough, key=lambda entry: (-len(entry.plain), -len(entry.meaning.template)))
    for place, entry in enumerate(ordered):
        # The first and the last word may continue in the text of a placeholder.
        whole = max(_WORD.findall(entry.plain)[1:-1], key=len, default="")
        by_word.setdefault(whole, []).append((place, entry))
    return by_word


@cache
def catalogue() -> tuple[Meaning, ...]:
    here = Path(__file__).parent
    nvidia: dict[str, list[list[str]]] = json.loads((here / "messages.json").read_text(encoding="utf-8"))
    rccl: dict[str, list[str]] = json.loads((here / "rccl_messages.json").read_text(encoding="utf-8"))
    of_nvidia = (Meaning(name, *row) for name, rows in nvidia.items() for row in rows)
    return (*of_nvidia, *(Meaning(name, template) for name, templates in rccl.items() for template in templates))


def _entry(meaning: Meaning) -> _Entry:
    template = meaning.template.replace("\\n", "\n").strip().replace('\\"', '"')
    pieces, plain, end = [], [""], 0
    for match in _PLACE.finditer(template):
        pieces += [re.escape(template[end : match.start()]), _PLACES.get(match[1], ".*")]
        plain.append(template[end : match.start()])
        end = match.end()
    pieces.append(re.escape(template[end:]))
    plain.append(template[end:])
    return _Entry(meaning, max(plain, key=len).split("\n")[0], "(?s)" + "".join(pieces))


BindFault = Literal["in-use", "privileged", "handed-over", "ephemeral"]

_NCCL = re.compile(r"NCCL\s+WARN\s+Call\s+to\s+bind\s+failed[\s?:]*(?:Address\s+already\s+in\s+use)?")
_IN_USE = r"(?:98|48)"
_PORT = r"(?P<port>\d{1,5})"
_BIND = r"failed\s+to\s+(?:bind|listen)\b.{0,80}?"
_HANDED = r"listen\s+fd\s+\d+\s+is\s+bound\s+to\s+port\s+\d+,\s+expected\s+to\s+be\s+bound\s+to\s+port\s+"
_WORDINGS: tuple[tuple[BindFault, str], ...] = (
    ("in-use", rf"{_BIND}:{_PORT}\s+\(errno:\s+{_IN_USE}\b"),
    ("in-use", rf"\bport:\s+{_PORT},\s+useIpv6:.{{0,40}}?\bcode:\s+-{_IN_USE}\b"),
    ("in-use", rf"\bon\s+port\s+`?{_PORT}`?,\s+but\s+another\s+process"),
    ("in-use", rf"\b[Pp]ort\s+[`']?{_PORT}[`']?\s+(?:is|was)\s+(?:already\s+)?(?:in\s+use|occupied|taken)"),
    ("privileged", rf"{_BIND}:{_PORT}\s+\(errno:\s+13\b"),
    ("privileged", rf"\bport:\s+{_PORT},\s+useIpv6:.{{0,40}}?\bcode:\s+-13\b"),
    ("handed-over", rf"{_HANDED}{_PORT}"),
    ("in-use", r"\bEADDRINUSE\b|\[Errno\s+(?:98|48)\]|\berrno:\s+(?:98|48)\b|[Aa]ddress\s+already\s+in\s+use"),
    ("privileged", r"\bEACCES\b"),
)

_MEANS: dict[BindFault, str] = {
    "in-use": "torch could not listen on it: address already in use",
    "privileged": "torch may not listen on it: ports below 1024 are for root (net.ipv4.ip_unprivileged_port_start)",
    "handed-over": "torch was handed a socket that is bound to another port",
    "ephemeral": "that is NCCL's own bind and not the master port's: NCCL takes any port that the kernel gives it, so "
    "these have run out. Widen net.ipv4.ip_local_port_range, or start fewer ranks on a host",
}


@dataclass(frozen=True)
class PortError:
    """An error about a port, found in a log or in pasted lines."""

    # "in-use"; "privileged": for root; "handed-over": a socket for another port; "ephemeral": NCCL's own bind
    kind: BindFault
    port: int | None  # None if the message has none; it is MASTER_PORT then, except for "ephemeral"
    line: str

    @property
    def meaning(self) -> str:
        return _MEANS[self.kind]


def find_port_error(text: str) -> PortError | None:
    """Return the port error in a log or in pasted lines, or None if no port error is found."""
    rest = _NCCL.sub("", text)
    for kind, pattern in _WORDINGS:
        match = re.search(pattern, rest, re.DOTALL)
        if match is not None:
            digits = match.groupdict().get("port")
            port = int(digits) if digits and 0 < int(digits) <= 65535 else None
            return PortError(kind, port, " ".join(match[0].split()))
    match = _NCCL.search(text)
    return None if match is None else PortError("ephemeral", None, " ".join(match[0].split()))
