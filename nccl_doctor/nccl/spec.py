"""The language of NCCL_SOCKET_IFNAME.

``[^][=]TOKEN[,TOKEN…]``: "^" turns the list into what to avoid, "=" asks for whole names instead of prefixes, and both
hold for the whole list. Blanks count, case counts, the order of the list does not.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOKENS = 16
"""NCCL 2.4 to 2.30, src/include/socket.h ``MAX_IFS``: what comes after the sixteenth token is not read."""


@dataclass(frozen=True)
class Spec:
    """A list of interfaces as NCCL reads it.

    Attributes:
        tokens: names or prefixes, without what stood behind a colon; empty matches every interface.
    """

    exclude: bool
    exact: bool
    tokens: tuple[str, ...]

    def listed(self, name: str) -> bool:
        """Whether the list holds this interface, "^" left aside (NCCL src/misc/utils.cc ``matchIfList``)."""
        if not self.tokens:
            return True
        if self.exact:
            return name in self.tokens
        return name.startswith(self.tokens)

    def accepts(self, name: str) -> bool:
        """Whether NCCL would take an interface of this name."""
        return self.listed(name) != self.exclude


def parse_spec(text: str, *, both_signs: bool = True) -> Spec:
    """Reads a value as NCCL does (src/misc/socket.cc ``findInterfaces``, src/misc/utils.cc ``parseStringList``).

    Args:
        text: the value, at least two characters long (see :func:`is_read`).
        both_signs: as in :class:`nccl_doctor.nccl.versions.Behaviour`.
    """
    exclude = text.startswith("^")
    rest = text[1:] if exclude else text
    exact = rest.startswith("=") and (both_signs or not exclude)
    return Spec(exclude, exact, _tokens(rest[1:] if exact else rest))


def _tokens(text: str) -> tuple[str, ...]:
    """The part before the colon of each token that has one (NCCL keeps "name:port" lists in the same syntax)."""
    names = (token.partition(":")[0] for token in text.split(","))
    return tuple(name for name in names if name)[:MAX_TOKENS]


def is_read(value: str | None) -> bool:
    """Whether NCCL looks at the value at all: one of fewer than two bytes counts as unset (``strlen(env) > 1``)."""
    return value is not None and len(value.encode(errors="surrogateescape")) > 1
