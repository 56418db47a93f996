"""How logs show no-route-to-host: NCCL's, torch's, gloo's and MPI's words for EHOSTUNREACH (113)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import C10D_CLIENT, failed_connects, failed_pairs
from nccl_doctor.logs.rule import WEB, Grade, LogSigns, hint, root
from nccl_doctor.logs.words import Advice, advise

_ERRNO = r"(?:No route to host|[Hh]ost is unreachable|[Nn]etwork is unreachable)"


def advice(case: Case) -> Advice:
    """Who did not reach whom, and a test of both."""
    return advise(
        f'{case.who} could not reach {case.target}. "No route to host" between hosts that can ping each other is a '
        "firewall's REJECT, or an interface on another net.",
        "Find the rule or the route that does it:",
        case.check(),
    )


RULES = (
    *failed_connects(Grade.ROOT, _ERRNO, "No route to host"),
    *failed_pairs(Grade.ROOT, _ERRNO, "No route to host"),
    root(
        r"WARN .*Call to connect (?:timeout|failed) ?: ?(?:No route|Network is unr)",
        "n1:1:2 [0] include/socket.h:361 NCCL WARN Call to connect failed : No route to host",
    ),
    root(
        r"\[Errno 113\]",
        "OSError: [Errno 113] No route to host",
        unless=WEB,
    ),
    root(
        r"(?:errno ?(?:=|:) ?113|btl_tcp\S* .*connect\(\) to (?P<ip>[0-9.]+):\d+ failed: No route)",
        "[n1][[1,0],2][btl_tcp_endpoint.c:803:mca_btl_tcp_endpoint_complete_connect] connect() to 10.0.0.9:1024 "
        "failed: No route to host (113) errno=113",
    ),
    hint(
        C10D_CLIENT + r"errno: 113 - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 113 - No route to "
        "host).",
    ),
)

SIGNS = LogSigns(RULES, advice, network=True, hint=Grade.ROOT)
