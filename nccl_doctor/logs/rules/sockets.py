"""Connections between ranks that do not come about or break: NCCL's sockets, gloo's, and plain errno lines.

Wordings per NCCL version: src/include/socket.h to 2.11, src/misc/socket.cc from 2.12, src/os/linux.cc from 2.29.
"""

from __future__ import annotations

from nccl_doctor.logs.rule import WEB, Grade, Rule, generic, hint, likely, root, symptom

RETURN_CODE = r"INFO misc/socket\.cc:\d+ -> 2\b"
"""ncclSystemError, on its way up: what failed stands before it, in a line that may be lost."""

_ERRNOS: tuple[tuple[str, Grade, str, str], ...] = (
    (
        "no-route-to-host",
        Grade.ROOT,
        r"(?:No route to host|[Hh]ost is unreachable|[Nn]etwork is unreachable)",
        "No route to host",
    ),
    ("connection-refused", Grade.LIKELY, r"[Cc]onnection refused", "Connection refused"),
    ("connection-timed-out", Grade.LIKELY, r"[Cc]onnection timed out", "Connection timed out"),
    ("ephemeral-ports-few", Grade.ROOT, r"Cannot assign requested address", "Cannot assign requested address"),
    ("wrong-interface", Grade.LIKELY, r"(?:Software caused connection abort|Invalid argument)", "Invalid argument"),
    ("peer-died", Grade.SYMPTOM, r"(?:Connection reset by peer|Broken pipe)", "Connection reset by peer"),
)


def _connect_rules() -> tuple[Rule, ...]:
    """A failed connect of NCCL, for each errno; while it is only retried it is a hint."""
    failed = r"[Cc]onnect to .*(?:failed|returned).*"
    rules = []
    for name, grade, errno, text in _ERRNOS:
        warn = f"n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : {text}"
        rules.append(Rule(name, grade, f"WARN .*{failed}{errno}", warn))
        last = f"Last error:  socketPollConnect: connect to 10.0.0.2<4242> returned {text}, exceeded error retry count"
        rules.append(Rule(name, grade, f"onnect (?:to .* )?returned .*{errno}.*exceeded error retry", last))
        retry = f"n1:1:2 [0] NCCL INFO Call to connect returned {text}, retrying"
        rules.append(hint(name, f"INFO .*connect.* returned .*{errno}.*retrying", retry))
    return tuple(rules)


def _gloo_rules() -> tuple[Rule, ...]:
    """Of gloo (third_party/gloo/gloo/transport/tcp): the peer's address stands behind ``remote=``."""
    full = r"connectFullMesh failed with .*"
    rules = [
        root(
            "hostname-loopback",
            full + r"(?:no error|remote=\[127\.|remote=\[::1\])",
            "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
        ),
        root(
            "hostname-loopback",
            r"(?:SO_ERROR: Connection refused|timed out connecting).*remote=\[(?:127\.|::1\])",
            "RuntimeError: [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, "
            "remote=[127.0.1.1]:17308",
        ),
    ]
    for name, grade, errno, text in _ERRNOS[:3]:
        sample = f"RuntimeError: timed out connecting: SO_ERROR: {text}, remote=[10.0.0.2]:9"
        rules.append(Rule(name, grade, rf"SO_ERROR: .*{errno}", sample))
        sample = f"RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:31337: {text}"
        rules.append(Rule(name, grade, rf"connect \[\S+\]:\d+: {errno}", sample))
    return tuple(rules)


RULES: tuple[Rule, ...] = (
    *_connect_rules(),
    *_gloo_rules(),
    likely(
        "connection-refused",
        r"WARN .*(?:onnect: exceeded retries|Call to connect timeout ?: ?Connection refused)",
        "n1:1:2 [0] misc/socket.cc:435 NCCL WARN socketStartConnect: exceeded retries (20000)",
    ),
    likely(
        "connection-timed-out",
        r"WARN .*onnect: exceeded timeouts",
        "n1:1:2 [0] misc/socket.cc:435 NCCL WARN socketStartConnect: exceeded timeouts (3)",
    ),
    likely(
        "connection-timed-out",
        r"WARN .*Call to connect (?:timeout|failed) ?: ?(?:Connection|Operation) timed out",
        "n1:1:2 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection timed out",
    ),
    root(
        "no-route-to-host",
        r"WARN .*Call to connect (?:timeout|failed) ?: ?(?:No route|Network is unr)",
        "n1:1:2 [0] include/socket.h:361 NCCL WARN Call to connect failed : No route to host",
    ),
    likely(
        "connection-timed-out",
        r"(?:[Cc]onnect timeout|[Tt]imed? ?out connecting:?|connect(?:ing)? timed out) \[?\d+\.\d+\.\d+\.\d+",
        "RuntimeError: [gloo/transport/tcp/pair.cc:180] Connect timeout [10.0.0.2]:31337",
    ),
    likely(
        "connection-refused",
        r"(?:ConnectionRefusedError|\[Errno 111\]|errno ?= ?111\b)",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        unless=WEB,
    ),
    likely(
        "connection-timed-out",
        r"\[Errno 110\]",
        "TimeoutError: [Errno 110] Connection timed out",
        unless=WEB,
    ),
    root(
        "no-route-to-host",
        r"\[Errno 113\]",
        "OSError: [Errno 113] No route to host",
        unless=WEB,
    ),
    root(
        "no-route-to-host",
        r"(?:errno ?(?:=|:) ?113|btl_tcp\S* .*connect\(\) to (?P<ip>[0-9.]+):\d+ failed: No route)",
        "[n1][[1,0],2][btl_tcp_endpoint.c:803:mca_btl_tcp_endpoint_complete_connect] connect() to 10.0.0.9:1024 "
        "failed: No route to host (113) errno=113",
    ),
    likely(
        "connection-refused",
        r"ailed to connect to remote host: Connection refused",
        "UNAVAILABLE: ipv4:10.0.0.2:8476: Failed to connect to remote host: Connection refused",
    ),
    likely(
        "connection-refused",
        r"(?:connect|Connect)\S* to (?P<ip>\d+\.\d+\.\d+\.\d+)(?::(?P<port>\d+))? (?:failed"
        r"|refused).*[Cc]onnection refused",
        "[n1][[1,0],2][btl_tcp_endpoint.c:803] connect() to 10.0.0.9:1024 failed: Connection refused (111)",
    ),
    root(
        "ephemeral-ports-few",
        r"NCCL WARN .*Call to bind failed ?: ?Address already in use",
        "n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed: Address already in use",
    ),
    root(
        "nofile-low",
        r"Too many open files",
        "n1:1:2 [0] os/linux.cc:214 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many open files",
    ),
    root(
        "nofile-low",
        r"received 0 items of ancdata",
        "RuntimeError: received 0 items of ancdata",
    ),
    root(
        "neighbour-table-small",
        r"neighbou?r table overflow",
        "[ 4242.1] neighbour: arp_cache: neighbor table overflow!",
    ),
    symptom(
        "peer-died",
        r"Connection closed by remote peer",
        "n1:1:2 [0] include/socket.h:416 NCCL WARN Net : Connection closed by remote peer",
    ),
    likely(
        "connection-timed-out",
        r"WARN .*socketPollConnect:? poll\(\) (?:returned|failed)",
        "n1:1:2 [0] misc/socket.cc:586 NCCL WARN socketPollConnect poll() returned 1, no POLLOUT events",
    ),
    symptom(
        "connection-timed-out",
        r"WARN .*Call to (?:recv|send|write|read)\S* .*failed ?: (?:Connection timed out|No route|Operation timed)",
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Net : Call to recv from 10.0.0.2<4242> failed : Connection timed out",
    ),
    generic(
        "connection-timed-out",
        RETURN_CODE,
        "n1:1:2 [0] NCCL INFO misc/socket.cc:564 -> 2",
    ),
    symptom(
        "peer-died",
        r"WARN .*Call to (?:recv|send|write|read)\S* .*failed ?: ",
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Net : Call to recv from 10.0.0.2<4242> failed : Connection reset by "
        "peer",
    ),
    symptom(
        "peer-died",
        r"WARN .*(?:Proxy Call to rank \d+ failed|Socket recv failed while polling|Proxy thread error"
        r"|Could not receive type from localRank)",
        "n1:1:2 [0] proxy.cc:1119 NCCL WARN Socket recv failed while polling for opId=0x7f12",
    ),
    symptom(
        "peer-died",
        r"(?:Connection closed by peer|(?:Read|Write|recv|send) (?:error"
        r"|timeout)) \[(?P<ip>[0-9a-fA-F.:]+)\]:(?P<port>\d+)",
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:31337",
    ),
    symptom(
        "peer-died",
        r"gloo/transport/tcp/.*(?:Connection reset by peer|Broken pipe|Socket closed|Connection closed)",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Socket closed",
    ),
    symptom(
        "peer-died",
        r"(?:recv|send)(?:Bytes|Value|String|Vector)? ?(?:failed|error).*(?:Broken pipe|Connection reset|got 0 bytes)",
        "[W113 04:10:22 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=83, addr=[a]:4, remote=[b]:5): "
        "Broken pipe",
    ),
    symptom(
        "peer-died",
        r"(?:failed to recv, got 0 bytes|TCPStore server has shut down too early|[Cc]onnection was (?:closed"
        r"|likely closed))",
        "RuntimeError: failed to recv, got 0 bytes",
    ),
    symptom(
        "peer-died",
        r"(?:\[Errno 104\]|\[Errno 32\])",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        unless=WEB,
    ),
    symptom(
        "peer-died",
        r"(?:RuntimeError|DistNetworkError|DistBackendError): (?:.*: )?(?:Connection reset by peer|Broken pipe)",
        "RuntimeError: Connection reset by peer",
    ),
)
