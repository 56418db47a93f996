"""Rules: a wording, the diagnosis that it speaks for, and how much it weighs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial

from nccl_doctor.text.bounds import safe_regex

WEB = (
    r"https?://|HTTPS?Connection|urllib3\.|requests\.exceptions|huggingface\.co\b|huggingface_hub\.|\bwandb[.:]"
    r"|\bpypi\.org|IPv6 network addresses"
)
"""Not about a host of the job: on clusters, downloads and trackers fail to connect every day, and IPv6 to resolve."""


class Grade(IntEnum):
    """How much a line says about the cause. Between two lines the higher grade is blamed, then the earlier one."""

    BENIGN = 0
    """Looks like a fault and is none."""
    CLUE = 1
    """No fault by itself; it shows where a run stood that then went no further."""
    HINT = 2
    """A fault only if the run failed and nothing tells more: a retry that may have succeeded, an unusual interface."""
    GENERIC = 3
    """Something failed; the line does not say what."""
    SYMPTOM = 4
    """What ranks see when some other rank has failed: a closed connection, a collective that timed out."""
    LIKELY = 5
    """A failure that has its own remedy, but may itself follow from another one."""
    ROOT = 6
    """A cause."""


@dataclass(frozen=True)
class LogRule:
    """One wording that logs hold.

    Attributes:
        pattern: a regular expression that doesn't look around (:mod:`nccl_doctor.text.bounds`). Named groups ``host``,
            ``ip``, ``port``, ``iface`` and ``rank`` become entities.
        sample: a line that it is meant for; the tests hold every rule against its own sample.
        unless: a line that this is found in is not meant.
        name: the diagnosis, which the file that the rule stands in tells; empty for BENIGN.
    """

    grade: Grade
    pattern: str
    sample: str
    unless: str = ""
    name: str = ""

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        """Made when a line first needs it: most never do."""
        return safe_regex(self.pattern), safe_regex(self.unless) if self.unless else None

    def match(self, text: str) -> re.Match[str] | None:
        """Where the wording stands in ``text``; None where it does not, or what speaks against it does."""
        pattern, unless = self._compiled
        found = pattern.search(text)
        return None if found is None or (unless is not None and unless.search(text)) else found


root = partial(LogRule, Grade.ROOT)
likely = partial(LogRule, Grade.LIKELY)
symptom = partial(LogRule, Grade.SYMPTOM)
generic = partial(LogRule, Grade.GENERIC)
hint = partial(LogRule, Grade.HINT)
clue = partial(LogRule, Grade.CLUE)
"""A rule of that grade: pattern, sample, and what speaks against it."""


def benign(pattern: str, sample: str) -> LogRule:
    """A rule of grade BENIGN: its line is no fault, whatever other rules say."""
    return LogRule(Grade.BENIGN, pattern, sample)
