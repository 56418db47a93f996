"""How logs show ssh-auth-failed: the words of OpenSSH's client."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, not_logged_in


def advice(case: Case) -> Advice:
    """The host, and where the key goes."""
    return not_logged_in(
        case, "no key was accepted", "Put the public key of the launching host into authorized_keys there:"
    )


RULES = (
    root(
        r"Permission denied(?: \((?:publickey|password|gssapi|keyboard)|, please try again)",
        "gpu-17: Permission denied (publickey,password).",
    ),
)

SIGNS = LogSigns(RULES, advice)
