"""Lines of evidence: what is true of several hosts is said once."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.text.hostlist import fold


def folded(seen: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Pairs of a host and what was seen there, as lines ``node[1-3]: what was seen``, in their order."""
    hosts: dict[str, dict[str, None]] = {}
    for host, text in seen:
        hosts.setdefault(text, {})[host] = None
    return tuple(f"{fold(those)}: {text}" for text, those in hosts.items())
