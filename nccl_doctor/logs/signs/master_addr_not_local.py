"""How logs show master-addr-not-local: a bind to an address that this host does not have (EADDRNOTAVAIL, 99)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The address that is not the master's."""
    return advise(
        f"{case.who} should be the master but does not have the address {case.address.ip or 'that it was given'}: it "
        "is another host's, or behind a NAT.",
        "Set MASTER_ADDR to an address of the host that runs node rank 0:",
        case.check(),
    )


RULES = (
    root(
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 99 - |EADDRNOTAVAIL)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to 10.0.0.9:29500 (errno: 99 - Cannot assign "
        "requested address).",
    ),
    root(
        r"(?:bind|listen|OSError).*(?:\[Errno 99\]|errno=99|[Cc]annot assign requested address)",
        "OSError: [Errno 99] Cannot assign requested address",
    ),
)

SIGNS = LogSigns(RULES, advice)
