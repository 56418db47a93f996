"""How logs show ssh-unreachable: the words of OpenSSH's client, and of an MPI launcher whose daemons do not start."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, generic, root
from nccl_doctor.logs.words import Advice, not_logged_in


def advice(case: Case) -> Advice:
    """The host, and what to start there."""
    return not_logged_in(case, "it does not answer", "Start sshd there and open its port, or correct the name:")


RULES = (
    root(
        r"ssh: connect to host (?P<host>\S+) port \d+: ",
        "ssh: connect to host gpu-17 port 22: Connection timed out",
    ),
    root(
        r"(?:ssh|kex)_exchange_identification: |rcmd: socket: Permission denied"
        r"|Connection (?:closed|reset) by (?P<ip>[0-9.]+) port 22\b",
        "kex_exchange_identification: Connection closed by remote host",
    ),
    generic(
        r"(?:ORTE|PRTE|PRRTE) (?:was unable to reliably start|has lost communication with|does not know how to route)",
        "ORTE was unable to reliably start one or more daemons.",
    ),
)

SIGNS = LogSigns(RULES, advice)
