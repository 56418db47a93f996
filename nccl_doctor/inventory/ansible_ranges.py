"""Ranges of host names as Ansible writes them, with colons."""

from __future__ import annotations

import itertools
import re
import string

from nccl_doctor.inventory.parsed import SourceLocation
from nccl_doctor.text.hostlist import MAX_HOSTS, quoted

_RANGE = re.compile(r"\[([0-9]{1,9}|[a-zA-Z]):([0-9]{1,9}|[a-zA-Z])(?::([0-9]{1,9}))?\]")


def expand(pattern: str, place: SourceLocation) -> list[str]:
    """Ansible's ranges: ``node[01:04]``, ``db-[a:c]``, and ``[1:9:2]`` with a step; both ends are included.

    At most 65,536 names, counted before any is made.

    Raises:
        HostsFileError: for a bracket that is no such range.
    """
    parts: list[list[str]] = []
    position, count = 0, 1
    for match in _RANGE.finditer(pattern):
        choices = _choices(match, place)
        count *= len(choices)
        if count > MAX_HOSTS:
            raise place.error(f"{quoted(pattern)} stands for {count} hosts or more; at most {MAX_HOSTS} are allowed")
        parts += [[pattern[position : match.start()]], list(choices)]
        position = match.end()
    rest = pattern[position:]
    if "[" in rest or "]" in rest:
        raise place.error(f"{quoted(pattern)} holds a bracket that is no range of Ansible's, such as node[01:04]")
    return ["".join(name) for name in itertools.product(*parts, [rest])]


def _choices(match: re.Match[str], place: SourceLocation) -> list[str]:
    low, high, step = match[1], match[2], int(match[3] or 1)
    letters = string.ascii_letters
    if low.isdigit() != high.isdigit() or step == 0 or (low[0] == "0" and low != "0" and len(low) != len(high)):
        raise place.error(f"{quoted(match[0])} is no range: two numbers, padded alike, or two letters, as in [01:04]")
    first, last = (int(low), int(high)) if low.isdigit() else (letters.index(low), letters.index(high))
    if last < first:
        raise place.error(f"the range {quoted(match[0])} runs backwards; write the smaller end first")
    steps = range(first, last + 1, step)
    if len(steps) > MAX_HOSTS:
        raise place.error(f"{quoted(match[0])} stands for {len(steps)} hosts; at most {MAX_HOSTS} are allowed")
    if not low.isdigit():
        return [letters[n] for n in steps]
    return [f"{n:0{len(low) if low[0] == '0' else 1}d}" for n in steps]
