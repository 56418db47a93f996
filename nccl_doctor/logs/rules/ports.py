"""The master port cannot be opened: torch's TCPStore, accelerate, Ray, plain errno lines."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, likely, root

RULES: tuple[Rule, ...] = (
    root(
        "port-in-use",
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(errno: (?:98|48) - ",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already "
        "in use).",
    ),
    root(
        "port-in-use",
        r"server socket has failed to (?:bind|listen).*port: (?P<port>\d+), .*EADDRINUSE",
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    root(
        "port-in-use",
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(system error: 10048\b",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (system error: 10048 - Only one "
        "usage of each socket address is normally permitted.).",
    ),
    root(
        "port-in-use",
        r"(?:EADDRINUSE|\[Errno (?:98|48)\]|errno: (?:98|48)\b)",
        "OSError: [Errno 98] Address already in use",
    ),
    likely(
        "port-in-use",
        r"(?:Error|error|bind|listen|failed|Failed|FATAL|store|c10d).*[Aa]ddress already in use",
        "RuntimeError: Address already in use",
    ),
    root(
        "port-in-use",
        r"(?:communication|launch\S*|listen\S*|bind) on port `?(?P<port>\d+)`?,? but another process",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
        "utilizing it.",
    ),
    root(
        "port-in-use",
        r"\b[Pp]ort `?'?(?P<port>\d{1,5})`?'? (?:is|was) (?:already )?(?:in use|occupied|taken|being used)",
        "ERROR: port 29500 is already in use by pid 4242",
    ),
    root(
        "port-in-use",
        r"trying to use a port number (?P<port>\d+) that is used by",
        "ValueError: Ray component gcs_server is trying to use a port number 6379 that is used by other components.",
    ),
    root(
        "port-privileged",
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 13 - |EACCES)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).",
    ),
    root(
        "master-addr-not-local",
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 99 - |EADDRNOTAVAIL)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to 10.0.0.9:29500 (errno: 99 - Cannot assign "
        "requested address).",
    ),
    root(
        "master-addr-not-local",
        r"(?:bind|listen|OSError).*(?:\[Errno 99\]|errno=99|[Cc]annot assign requested address)",
        "OSError: [Errno 99] Cannot assign requested address",
    ),
)
