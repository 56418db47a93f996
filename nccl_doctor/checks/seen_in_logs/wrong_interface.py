"""NCCL uses an interface that the other hosts do not reach.

What it means: NCCL took a loopback, container, bridge or link-local interface, or one on another net than the other
hosts' interfaces, and told its peers that address.

How we know: The interface stands in "Bootstrap : Using docker0:172.17.0.1<0>" or "NET/Socket : Using …". It counts as
a fault when connections to such an address fail, or when several hosts use one.

Fix: Set NCCL_SOCKET_IFNAME to the right name on every host, with = in front for an exact match. A list that begins
with ^ excludes what it names and nothing else: `^docker0` lets lo in. `nccl-doctor ifname` says what NCCL chooses and
why.

References: NCCL's src/misc/socket.cc (ncclFindInterfaces).
"""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import CHOSEN, failed_connects
from nccl_doctor.logs.rule import Grade, clue, hint, root
from nccl_doctor.logs.signs import Advice, LogSigns, advise, ifname_command
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD901", explains=("hostname-loopback", "no-route-to-host"))

_VIRTUAL = (
    r"(?:lo|docker\d*|virbr\d*|veth\w*|br-\w+|lxc\w*|lxdbr\d*|cni\d*|flannel\S*|cali\w*|tailscale\d*|wg\d*|tun\d*"
    r"|tap\d*|podman\d*|vmnet\d*)"
)
"""Interfaces that other hosts do not reach, or not by this address."""


def advice(case: Case) -> Advice:
    """Which interface NCCL took, and how to see the right one."""
    entities = case.entities()
    iface, ip = entities.get("iface"), entities.get("ip")
    used = f"{iface} ({ip})" if iface and ip else iface or ip or "an interface that the peers do not reach"
    return advise(
        f"NCCL uses {used} on {case.who}, which the other hosts do not reach by that address.",
        "See which interface is right on each host, then set NCCL_SOCKET_IFNAME to it, with = in front:",
        ifname_command(case),
    )


RULES = (
    hint(
        r"(?:Bootstrap ?: Using|NET(?:/Socket)? ?: Using(?: interface)?|; OOB) (?:\[0\])?(?P<iface>"
        + _VIRTUAL
        + r"):(?P<ip>[0-9a-fA-F.:]+)",
        "n1:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>",
    ),
    root(
        r"set of common (?:task-to-task|routable|driver|network|NICs).*interface",
        "Exception: Unable to find a set of common task-to-task communication interfaces: [(0, {'lo'}), (1, {'eth1'})]",
    ),
    root(
        r"Socket creation failed ?: ?Address family not supported",
        "g7:4:4 [0] include/socket.h:318 NCCL WARN Net : Socket creation failed : Address family not supported by "
        "protocol",
    ),
    *failed_connects(Grade.LIKELY, r"(?:Software caused connection abort|Invalid argument)", "Invalid argument"),
    clue(CHOSEN, "n1:1:2 [0] NCCL INFO Bootstrap : Using eno1:10.0.0.1<0>"),
)

SIGNS = LogSigns(RULES, advice)
