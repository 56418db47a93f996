"""How logs show ssh-host-key-changed: the words of OpenSSH's client."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, not_logged_in


def advice(case: Case) -> Advice:
    """The host, and what to find out first."""
    return not_logged_in(case, "its host key has changed", "Find out why before you remove the old key:")


RULES = (
    root(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
    ),
)

SIGNS = LogSigns(RULES, advice)
