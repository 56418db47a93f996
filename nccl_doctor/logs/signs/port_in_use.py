"""How logs show port-in-use: torch's, accelerate's and Ray's words for EADDRINUSE (98; macOS 48, Windows 10048)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, likely, root
from nccl_doctor.logs.words import Advice, advise
from nccl_doctor.model.finding import on
from nccl_doctor.text.shell import line


def advice(case: Case) -> Advice:
    """The port, and the command that shows who holds it."""
    port = case.port
    place = f"port {port}" if port else "the master port"
    return advise(
        f"{place[0].upper()}{place[1:]} is taken on {case.who if case.hosts else 'the master'}: by a process left "
        "over, by another job, or by a second rank that also believes it is the master.",
        "See who holds it, end that or move away (on the master):",
        on(None, line("nccl-doctor fix-port {*port}", port=[port] if port else [])),
    )


RULES = (
    root(
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(errno: (?:98|48) - ",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already "
        "in use).",
    ),
    root(
        r"server socket has failed to (?:bind|listen).*port: (?P<port>\d+), .*EADDRINUSE",
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    root(
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(system error: 10048\b",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (system error: 10048 - Only one "
        "usage of each socket address is normally permitted.).",
    ),
    root(
        r"(?:EADDRINUSE|\[Errno (?:98|48)\]|errno: (?:98|48)\b)",
        "OSError: [Errno 98] Address already in use",
    ),
    likely(
        r"(?:Error|error|bind|listen|failed|Failed|FATAL|store|c10d).*[Aa]ddress already in use",
        "RuntimeError: Address already in use",
    ),
    root(
        r"(?:communication|launch\S*|listen\S*|bind) on port `?(?P<port>\d+)`?,? but another process",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
        "utilizing it.",
    ),
    root(
        r"\b[Pp]ort `?'?(?P<port>\d{1,5})`?'? (?:is|was) (?:already )?(?:in use|occupied|taken|being used)",
        "ERROR: port 29500 is already in use by pid 4242",
    ),
    root(
        r"trying to use a port number (?P<port>\d+) that is used by",
        "ValueError: Ray component gcs_server is trying to use a port number 6379 that is used by other components.",
    ),
)

SIGNS = LogSigns(RULES, advice)
