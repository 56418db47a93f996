"""How logs show port-privileged: torch may not bind the master port (EACCES, 13)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """A port that may be opened."""
    port = f" {case.port}" if case.port else ""
    return advise(
        f"Port{port} may not be opened by this user: ports below net.ipv4.ip_unprivileged_port_start need root.",
        "Take a port above 1024 as master port.",
    )


RULES = (
    root(
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 13 - |EACCES)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).",
    ),
)

SIGNS = LogSigns(RULES, advice)
