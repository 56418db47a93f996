"""How logs show hostname-loopback: gloo dials 127.x, which a peer took for its own address."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The line of /etc/hosts to mend."""
    return advise(
        f"gloo connected to {case.target if case.address.ip else 'a loopback address'} instead of another host: a "
        "host's own name gives 127.x there, and that is what it told its peers.",
        "Take the host's name out of the 127.0.1.1 line of /etc/hosts, or set GLOO_SOCKET_IFNAME on every host. See "
        "which:",
        case.check(),
    )


RULES = (
    root(
        r"connectFullMesh failed with .*(?:no error|remote=\[127\.|remote=\[::1\])",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    ),
    root(
        r"(?:SO_ERROR: Connection refused|timed out connecting).*remote=\[(?:127\.|::1\])",
        "RuntimeError: [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, "
        "remote=[127.0.1.1]:17308",
    ),
)

SIGNS = LogSigns(RULES, advice, network=True)
