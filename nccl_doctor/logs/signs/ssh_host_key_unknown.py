"""How logs show ssh-host-key-unknown: the words of OpenSSH's client."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, not_logged_in


def advice(case: Case) -> Advice:
    """The host, and what to compare."""
    return not_logged_in(case, "its host key is not known", "Compare its fingerprint, then add the key to known_hosts:")


RULES = (root(r"Host key verification failed", "Host key verification failed."),)

SIGNS = LogSigns(RULES, advice)
