"""Connections to another host get no answer.

What it means: The packets are silently dropped by a firewall's DROP rule or a cloud's security group, or are routed to
a network where no host answers.

How we know: the log contains NCCL's "Connect to … failed : Connection timed out" or "exceeded timeouts", torch's errno
110, or gloo's "timed out connecting". Each connection attempt takes about two minutes (net.ipv4.tcp_syn_retries).

Fix: Open the ephemeral port range between the cluster's hosts, in the hosts' firewalls and in the cloud's rules. If the
target address is in the wrong network, set NCCL_SOCKET_IFNAME. `nccl-doctor check` shows which change is needed.

References: NCCL's src/misc/socket.cc; torch/csrc/distributed/c10d/socket.cpp; tcp(7) on tcp_syn_retries.
"""

from nccl_doctor.logs import rule
from nccl_doctor.logs.rule import Grade, failed_connects, failed_pairs, generic, hint, likelies, likely, symptom
from nccl_doctor.logs.signs import LogSigns, Role, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD312", errors=("ETIMEDOUT",))

ADVICE = make_advice(
    "{who} got no answer from {target}: a firewall or a cloud's security group drops the packets, or "
    "the address is on a network that this host can't reach.",
    "NCCL takes its ports from the whole ephemeral range, so opening only the master port is not enough. Test all:",
)

# Messages of NCCL, torch and gloo for ETIMEDOUT (110).
RULES = (
    *failed_connects(Grade.LIKELY, r"[Cc]onnection timed out", "Connection timed out"),
    *failed_pairs(Grade.LIKELY, r"[Cc]onnection timed out", "Connection timed out"),
    *likelies(
        r"WARN .*onnect: exceeded timeouts",
        "n1:1:2 [0] misc/socket.cc:435 NCCL WARN socketStartConnect: exceeded timeouts (3)",
        r"WARN .*Call to connect (?:timeout|failed) ?: ?(?:Connection|Operation) timed out",
        "n1:1:2 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection timed out",
        r"(?:[Cc]onnect timeout|[Tt]imed? ?out connecting:?|connect(?:ing)? timed out) \[?\d+\.\d+\.\d+\.\d+",
        "RuntimeError: [gloo/transport/tcp/pair.cc:180] Connect timeout [10.0.0.2]:31337",
    ),
    likely(r"\[Errno 110\]", "TimeoutError: [Errno 110] Connection timed out", unless=rule.WEB),
    likely(
        r"WARN .*socketPollConnect:? poll\(\) (?:returned|failed)",
        "n1:1:2 [0] misc/socket.cc:586 NCCL WARN socketPollConnect poll() returned 1, no POLLOUT events",
    ),
    symptom(
        r"WARN .*Call to (?:recv|send|write|read)\S* .*failed ?: (?:Connection timed out|No route|Operation timed)",
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Net : Call to recv from 10.0.0.2<4242> failed : Connection timed out",
    ),
    generic(rule.RETURN_CODE, "n1:1:2 [0] NCCL INFO misc/socket.cc:564 -> 2"),
    hint(
        rule.C10D_CLIENT + r"(?:errno: 110|system error: 10060) - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 110 - Connection "
        "timed out).",
    ),
)

SIGNS = LogSigns(RULES, ADVICE, roles=frozenset({Role.ECHO, Role.NETWORK, Role.DIALS, Role.RETRIED}), hint=Grade.ROOT)
