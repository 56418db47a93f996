"""Connections to a host fail with "No route to host" or "Network is unreachable".

What it means: "No route to host" means that the kernel received an ICMP message such as "host unreachable" for the
target address, or that no host answered its ARP requests. If the hosts can ping each other, the cause is a firewall's
REJECT rule, which is firewalld's default. If the hosts can't ping each other, the target host is down, an interface is
in a different network, or no host has the target address. "Network is unreachable" means that the connecting host has
no route to the target address, for example because its interface in that network is down or has no address.

How we know: the log contains NCCL's "Connect to 10.0.0.2<4242> failed : No route to host" or "Network is unreachable",
errno 113 in torch or gloo, or errno 101 in torch for an IPv4 address. NCCL 2.24 and later retry 34 times and log the
retries only at INFO level.

Fix: If the error is "No route to host", allow connections from the cluster's own addresses on the host that rejects
them. `nccl-doctor check` shows the rule that rejects the connections, and a command that allows only connections from
the cluster's own addresses. NCCL's ports come from the whole ephemeral range, so opening only the master port is not
sufficient. If the error is "Network is unreachable", look at `ip address` and `ip route` on the connecting host.

References: NCCL's src/misc/socket.cc and src/os/linux.cc; connect(2) on EHOSTUNREACH and ENETUNREACH.
"""

import re

from nccl_doctor.logs.rule import C10D_CLIENT, C10D_UNREACHABLE, WEB, Grade, failed_connects, failed_pairs, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Role, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD311", errors=("EHOSTUNREACH",))


_ERRNO = r"(?:No route to host|[Hh]ost is unreachable|[Nn]etwork is unreachable)"

_ENETUNREACH = re.compile(r"[Nn]etwork is unr")

_NO_HOST = make_advice(
    '{who} could not reach {target}. "No route to host" between hosts that can ping each other means '
    "that a firewall rejects the connection (REJECT), or that an interface is on another network.",
    "Find the rule or route that causes this:",
)
_NO_NETWORK = make_advice(
    "{who} has no route to {target}: its interface in that network is down or has no address, or the address is in "
    "another network.",
    "Look at `ip address` and `ip route` on the connecting host, then test all connections:",
)


def _advice(case: Case) -> Advice:
    return (_NO_NETWORK if _ENETUNREACH.search(case.first.text) else _NO_HOST)(case)


# Messages of NCCL, torch, gloo and MPI for EHOSTUNREACH (113) and ENETUNREACH (101).
RULES = (
    *failed_connects(Grade.ROOT, _ERRNO, "No route to host"),
    *failed_pairs(Grade.ROOT, _ERRNO, "No route to host"),
    root(
        r"WARN .*Call to connect (?:timeout|failed) ?: ?(?:No route|Network is unr)",
        "n1:1:2 [0] include/socket.h:361 NCCL WARN Call to connect failed : No route to host",
    ),
    root(r"\[Errno 113\]", "OSError: [Errno 113] No route to host", unless=WEB),
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
    hint(
        C10D_UNREACHABLE,
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [10.0.0.2]:29500 (errno: 101 - Network "
        "is unreachable).",
    ),
)

SIGNS = LogSigns(RULES, _advice, roles=frozenset({Role.NETWORK, Role.DIALS, Role.RETRIED}), hint=Grade.ROOT)
