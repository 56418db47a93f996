"""How logs show hostname-unresolvable: getaddrinfo's errors as libc, Windows, Go, Java, torch and SSH word them."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import C10D_CLIENT
from nccl_doctor.logs.rule import WEB, LogSigns, hint, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The name, and where to enter it."""
    name = case.address.host
    return advise(
        f"{case.who} could not resolve {name or 'the name of another host'}.",
        "Use the master's address instead of its name, or put the name into DNS or /etc/hosts on every host. In "
        "Kubernetes the service's record may come later than the pod: wait for it before the start.",
        case.check(),
    )


RULES = (
    root(
        r"[Cc]ould not resolve (?:host|hostname|proxy)?:? ?(?P<host>[A-Za-z0-9._-]+)(?::? Name|:? Temp|: No address|$)",
        "ssh: Could not resolve hostname gpu-17: Name or service not known",
    ),
    root(
        r"(?:Name or service not known|Temporary failure in name resolution|nodename nor servname provided)",
        "ValueError: host not found: Name or service not known",
        unless=WEB,
    ),
    root(
        r"No address associated with hostname",
        "socket.gaierror: [Errno -5] No address associated with hostname",
        unless=WEB,
    ),
    root(
        r"[Tt]he IPv4 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[E socket.cpp:810] [c10d] The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        r"Error: [Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be",
        "RuntimeError: The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or "
        "service not known).",
    ),
    hint(
        r"[Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        r"(?:[Nn]o such host is known|\[Errno 1100[1-4]\]|ENOTFOUND|EAI_(?:AGAIN|NONAME|FAIL)"
        r"|gethostby\w+ (?:failed|error)"
        r"|[Uu]nknown host:? |[Hh]ost ?name lookup fail"
        r"|(?:[Uu]nable|[Ff]ailed|[Cc]annot|[Cc]ould not) to resolve (?:host|name|\S+:\d)"
        r"|DNS (?:resolution|lookup|query) failed|Domain name not found|[Nn]ame resolution fail"
        r"|[Nn]o address found for host"
        r"|cannot resolve (?:host|own|local|the host))",
        "socket.gaierror: [Errno 11001] getaddrinfo failed",
        unless=WEB,
    ),
    root(
        r"gloo.{0,160}(?:10049|requested address is not valid)",
        "RuntimeError: [enforce fail at gloo/transport/uv/device.cc:153] rv != -1. bind: (10049) The requested address "
        "is not valid in its context",
    ),
    root(
        r"rp != nullptr\. Unable to find address for:? ?(?P<host>[A-Za-z0-9._-]+)",
        "RuntimeError: [enforce fail at gloo/transport/uv/device.cc:153] rp != nullptr. Unable to find address for: "
        "DESKTOP-7QK2",
    ),
    root(
        r"\(gai error: -\d+ - .{0,60}\)",
        "RuntimeError: The hostname of the server socket cannot be retrieved (gai error: -3 - Temporary failure in "
        "name resolution).",
        unless=r"IPv6 network addresses|client socket cannot be retrieved",
    ),
    root(
        r"error encountered when getting address info ?:",
        "n1:7:7 [0] misc/socket.cc:317 NCCL WARN Net : error encountered when getting address info : Name or service "
        "not known",
    ),
    root(
        r"(?:gaierror|getaddrinfo).{0,40}(?:fail|\[Errno -?\d+\])",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        unless=WEB,
    ),
    root(
        r"(?:lookup (?P<host>[\w.-]+)(?: on \S+)?: no such host|Name does not resolve|UnknownHostException"
        r"|[Hh]ost ?name .{0,60}could not be resolved)",
        "dial tcp: lookup worker-0.train on 10.96.0.10:53: no such host",
    ),
    hint(
        C10D_CLIENT + r"system error: 10049 - ",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [own-name.local]:29500 (system error: "
        "10049 - The requested address is not valid in its context.).",
    ),
)

SIGNS = LogSigns(
    RULES, advice, hint_beside=("connection-refused", "connection-timed-out", "no-route-to-host", "rendezvous-timeout")
)
