"""How logs show ifname-no-match: NCCL's bootstrap or its network finds no interface."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise, ifname_command
from nccl_doctor.text.shell import word


def advice(case: Case) -> Advice:
    """The value that fits nothing, and how to see what there is."""
    value = case.log.facts.ifname
    setting = f"NCCL_SOCKET_IFNAME={word(value)} fits" if value else "NCCL_SOCKET_IFNAME fits"
    return advise(
        f"{setting} no interface on {case.who} (a name that differs between hosts, a space behind a comma, an "
        "interface that is down).",
        "Names are prefixes; = in front means exactly this name, ^ means all but these. See what there is:",
        ifname_command(case),
    )


RULES = (
    root(
        r"Bootstrap ?: ?no socket interface found",
        "n1:71:2204 [0] bootstrap.cc:44 NCCL WARN Bootstrap : no socket interface found",
    ),
    root(
        r"NET/Socket ?: ?[Nn]o (?:usable listening )?interface found",
        "n1:71:71 [0] transport/net_socket.cc:48 NCCL WARN NET/Socket : no interface found",
    ),
    root(
        r"WARN (?:.*: )?No usable listening interface found",
        "n1:71:71 [0] transport/net_socket.cu:90 NCCL WARN No usable listening interface found",
    ),
    root(
        r"No interface found in the same subnet as remote address",
        "n1:7:7 [0] misc/socket.cc:242 NCCL WARN Net : No interface found in the same subnet as remote address "
        "10.9.0.1<5>",
    ),
    root(
        r"NET/IB ?: No IP interface found",
        "n1:71:71 [0] transport/net_ib.cc:170 NCCL WARN NET/IB : No IP interface found.",
    ),
    root(
        r"no device found (?:matching|after excluding) .*verify NCCL_OOB_NET_IFNAME",
        "n1:7:7 [0] bootstrap.cc:90 NCCL WARN no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME",
    ),
)

SIGNS = LogSigns(RULES, advice)
