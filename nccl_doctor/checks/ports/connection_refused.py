"""A rank's connection to another rank was refused.

What it means: No process was listening at the target address and port. The process that should have been listening had
ended or had not started yet, or the address was wrong (for example a loopback address, a wrong master address, or an
address from a stale init file).

How we know: the log contains NCCL's "Connect to 10.0.0.2<4242> failed : Connection refused" (or an older form), torch's
"The client socket has failed to connect to … (errno: 111", gloo's "SO_ERROR: Connection refused", or Ray's "Failed to
connect to GCS". NCCL retries a refused connection for a minute (for about 20 seconds in NCCL 2.23 and earlier) before
it fails, so a few INFO messages about retries are normal at the start of a job. Ray's message does not show whether the
connection was refused or got no answer, but usually Ray's head node was not running.

Fix: Look for the first error of the process that should have been listening. Check MASTER_ADDR and MASTER_PORT on every
host. `nccl-doctor check` tests the ports between all pairs of hosts.

References: NCCL's src/misc/socket.cc (2.12 to 2.28) and src/os/linux.cc (2.29 on);
torch/csrc/distributed/c10d/socket.cpp.
"""

import re

from nccl_doctor.logs.rule import C10D_CLIENT, WEB, Grade, failed_connects, failed_pairs, hint, likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Role, advise, make_advice
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.inet import is_loopback

from_logs(__name__, "NCD310", errors=("ECONNREFUSED",))

_GCS = r"Failed to connect to GCS (?:at|within|after)|Unable to connect to GCS|ailed to connect to (?:the )?GCS"
"""Pattern for messages of Ray processes that can't connect to the head node's global control service (GCS)."""


_PLAIN = make_advice(
    "{target} refused a connection from {who}: no process was listening there. The process had exited or not yet "
    "started, or the address belongs to no host of this job.",
    "Look for the first error on that host, check the master address, and test the ports:",
)


def _advice(case: Case) -> Advice:
    name = case.address.ip or case.address.host or ""
    if re.search(_GCS, case.first.text):
        return advise(
            f"{case.who} could not connect to Ray's head node{f' at {case.target}' if name else ''}: Ray is not "
            "running there, the address is wrong, or a firewall blocks the connection.",
            "On the head node, look at the output of `ray status` and at gcs_server.out, then test the ports:",
            case.check(),
        )
    if name == "localhost" or is_loopback(name):
        return advise(
            f"{case.target} refused a connection from {case.who}: this address refers to each host itself, and "
            "only the "
            "master listens on it.",
            "Use the master's address on the hosts' network, as the master address and in --dist-url or "
            "--rdzv_endpoint. On a single host, find out why its first rank exited:",
            case.check(),
        )
    return _PLAIN(case)


# Messages of NCCL, torch, gloo, MPI and JAX for ECONNREFUSED (111), and of Ray for gRPC's UNAVAILABLE (14).
RULES = (
    *failed_connects(Grade.LIKELY, r"[Cc]onnection refused", "Connection refused"),
    *failed_pairs(Grade.LIKELY, r"[Cc]onnection refused", "Connection refused"),
    likely(
        r"WARN .*(?:onnect: exceeded retries|Call to connect timeout ?: ?Connection refused)",
        "n1:1:2 [0] misc/socket.cc:435 NCCL WARN socketStartConnect: exceeded retries (20000)",
    ),
    likely(
        r"(?:ConnectionRefusedError|\[Errno 111\]|errno ?= ?111\b)",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        unless=WEB,
    ),
    likely(
        r"ailed to connect to remote host: Connection refused",
        "UNAVAILABLE: ipv4:10.0.0.2:8476: Failed to connect to remote host: Connection refused",
    ),
    likely(
        r"(?:connect|Connect)\S* to (?P<ip>\d+\.\d+\.\d+\.\d+)(?::(?P<port>\d+))? (?:failed"
        r"|refused).*[Cc]onnection refused",
        "[n1][[1,0],2][btl_tcp_endpoint.c:803] connect() to 10.0.0.9:1024 failed: Connection refused (111)",
    ),
    likely(_GCS, "RuntimeError: Failed to connect to GCS at address=192.168.5.20:6379. rpc_code: 14"),
    hint(
        C10D_CLIENT + r"(?:errno: 111|system error: 10061) - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 111 - Connection "
        "refused).",
    ),
    hint(
        r"TCP client failed to connect/validate to host .*retrying.*Connection refused",
        "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - retrying (try=3, "
        "timeout=9ms, delay=1ms): Connection refused",
    ),
)

SIGNS = LogSigns(RULES, _advice, roles=frozenset({Role.ECHO, Role.NETWORK, Role.DIALS, Role.RETRIED}), hint=Grade.ROOT)
