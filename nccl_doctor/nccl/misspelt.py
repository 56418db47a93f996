"""Names of variables that no program reads, and the variables that were probably meant.

NCCL, torch and gloo ignore unknown names, so a misspelt name has no effect and causes no message. A name counts as
misspelt if its words differ from those of a known name only in a few letters or in their order. A name also counts as
misspelt if it lacks the word IB, NET or SOCKET of a known name, or if it contains ENABLE instead of DISABLE or DISABLE
instead of ENABLE. For any other name, no variable is suggested, because a suggestion with a different meaning
(NCCL_IB_TIMEOUT for NCCL_TIMEOUT) is worse than no suggestion. If a line of a config file begins with spaces or
"export", NCCL treats the spaces or "export" as part of the variable's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from nccl_doctor.nccl.variables import BUILD_NAMES, PLUGIN_PREFIXES, PYTORCH_NAMES, TORCH_NAMES, register

_GLOOS = (
    "SOCKET_IFNAME DEVICE_TRANSPORT LOG_LEVEL DISABLE_CONNECTION_RETRIES ENABLE_STORE_V2_API"
    " ENABLE_RANK_AS_SEQUENCE_NUMBER"
)
GLOO_NAMES = frozenset(f"GLOO_{part}" for part in _GLOOS.split())
"""Variables of gloo and of torch's gloo backend, as found in the libraries of torch 2.13."""

ALIKE = 0.75  # difflib's ratio from which a word counts as a misspelt other one: DEBGU, DEBUG
ALIKE_AS_A_WHOLE = 0.9  # the same of names without underscores: GIDINDXE, GIDINDEX
FAMILIES = frozenset({"IB", "NET", "SOCKET"})  # words that are forgotten in front of others
SAME = {
    **dict.fromkeys(("IF", "IFACE", "INTERFACE", "NAME"), "IFNAME"),
    "ALGORITHM": "ALGO",
    "PROTOCOL": "PROTO",
    "COUNT": "CNT",
    "DISABLED": "DISABLE",
    "ENABLED": "ENABLE",
    "SUBSYSTEM": "SUBSYS",
    "ERR": "ERROR",
}
HABITS = {  # what people are used to from elsewhere
    "NCCL_LOG_LEVEL": "NCCL_DEBUG",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    "NCCL_BUFFER_SIZE": "NCCL_BUFFSIZE",
}
OPPOSITE = {"ENABLE": "DISABLE", "DISABLE": "ENABLE"}

NameWords = tuple[str, ...]


@dataclass(frozen=True)
class Meant:
    """The variable that a misspelt name probably stands for.

    ``opposite`` is true if the variable needs the opposite value.
    """

    name: str
    opposite: bool = False


def reader(name: str) -> str | None:
    """Return the library to which a variable of this name seems to belong ("NCCL", "torch" or "gloo"), or None."""
    first, _, rest = _bare(name).partition("_")
    if _of_torch(name) is not None:
        return "torch"
    if first == "TORCH":
        return "torch" if rest.startswith(("NCCL_", "FR_")) else None
    if _is_alike(first, "NCCL") and f"NCCL_{rest}" in register():
        return "NCCL"  # NCLL_DEBUG
    return {"NCCL": "NCCL", "GLOO": "gloo"}.get(first) if rest else None


def _of_torch(name: str) -> str | None:
    """Return the torch variable that is meant by a name with a misspelt prefix, such as ``TORH_NCCL_``."""
    first, second, rest = (*_bare(name).split("_", 2), "", "")[:3]
    right = f"TORCH_NCCL_{rest}"
    return right if right in TORCH_NAMES and _is_alike(first, "TORCH") and _is_alike(second, "NCCL") else None


def is_known(name: str) -> bool:
    """Return whether NCCL, an NCCL plugin, torch, gloo or a build script reads the variable.

    The result is also True if the name does not look like a variable of NCCL, torch or gloo.
    """
    if reader(name) != "NCCL":
        return reader(name) is None or name in TORCH_NAMES or name in GLOO_NAMES
    known = name in register() or name in BUILD_NAMES or name in PYTORCH_NAMES
    return known or name.startswith(PLUGIN_PREFIXES)


def meant(name: str) -> Meant | None:
    """Return the known variable that was probably meant, or None if no known variable fits."""
    same = HABITS.get(_bare(name), f"NCCL_{_bare(name).partition('_')[2]}")
    if same in register():
        return Meant(same)
    if (right := _of_torch(name)) is not None:
        return Meant(right)
    parts = _words(name)
    others = _known(gloo=reader(name) == "gloo")
    if match := _closest(name, parts, others):
        return Meant(match)
    turned = tuple(OPPOSITE.get(word, word) for word in parts)
    if turned != parts and (match := _closest(name, turned, others)):
        return Meant(match, opposite=True)
    if advice(name) is None:
        longer = [candidate for candidate, words in others.items() if words[1:] == parts and words[0] in FAMILIES]
        if len(longer) == 1:
            return Meant(longer[0])
    return None


def advice(name: str) -> str | None:
    """Return advice if a name seems to set a timeout or port for which no variable exists, or None for other names."""
    if reader(name) == "gloo":
        return None
    words = _words(name)
    if "TIMEOUT" in words:
        return "torch's timeout for collectives is set in the script, with init_process_group(timeout=...)"
    if "PORT" in words or "PORTS" in words:
        return "NCCL's ports are those of net.ipv4.ip_local_port_range, and the master's is MASTER_PORT"
    return None


@cache
def _known(*, gloo: bool) -> dict[str, NameWords]:
    names: Iterable[str] = GLOO_NAMES if gloo else (*register(), *TORCH_NAMES)
    return {name: _words(name) for name in names}


def _bare(name: str) -> str:
    """Return the last word of the name in uppercase letters."""
    return name.upper().split()[-1] if name.strip() else ""


def _words(name: str) -> NameWords:
    """Return the words of a name in a uniform spelling, without the prefixes TORCH, NCCL, FR and GLOO."""
    words = _bare(name).replace("IF_NAME", "IFNAME").split("_")
    while words and words[0] in ("TORCH", "NCCL", "FR", "GLOO"):
        del words[0]
    return tuple(SAME.get(word, word) for word in words)


def _closest(name: str, words: NameWords, others: dict[str, NameWords]) -> str | None:
    whole = difflib.SequenceMatcher(b=name.upper())

    def likeness(other: str) -> float:
        whole.set_seq1(other)
        return whole.ratio()

    return max(_alike(words, others), key=likeness, default=None)


def _alike(parts: NameWords, others: dict[str, NameWords]) -> Iterator[str]:
    joined = difflib.SequenceMatcher(b="".join(parts))
    for name, words in others.items():
        if len(words) != len(parts):
            joined.set_seq1("".join(words))
            bounds = joined.real_quick_ratio, joined.quick_ratio, joined.ratio  # the cheapest first
            if all(ratio() >= ALIKE_AS_A_WHOLE for ratio in bounds):
                yield name
        elif sorted(words) == sorted(parts) or all(map(_is_alike, parts, words)):
            yield name


def _is_alike(name: str, known: str) -> bool:
    short, long = sorted((name, known), key=len)
    if len(long) > len(short) + 1:
        return False
    letters = iter(long)
    same = sorted(name) == sorted(known) or all(letter in letters for letter in short)  # a letter is missing
    return same or difflib.SequenceMatcher(None, name, known).ratio() >= ALIKE
