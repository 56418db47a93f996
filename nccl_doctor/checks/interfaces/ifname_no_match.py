"""NCCL_SOCKET_IFNAME matches no interface of the host.

What it means: NCCL does not fall back to another interface. NCCL fails immediately with "Bootstrap : no socket
interface found" and ncclInvalidUsage (ncclInternalError before 2.24.3). Names in NCCL_SOCKET_IFNAME are prefixes, so
"eth" matches eth0 and eth1, but not enp3s0. With "=" in front of the list, the names must match exactly; with "^", all
interfaces except the listed ones match. Spaces and case are significant in the names.

How we know: nccl-doctor applies the rules by which the NCCL version that torch loads chooses interfaces, or libnccl
itself reports that it finds no interface. The interfaces are considered in the kernel's order. The variables are taken
from the hosts file, the SSH environment and NCCL's config files.

Fix: set NCCL_SOCKET_IFNAME to an interface that exists on the host. If interface names differ between hosts, set
NCCL_SOCKET_IFNAME to a different value on each host.

See NCCL's documentation of NCCL_SOCKET_IFNAME, and src/misc/socket.cc in its source.
"""

import re

from nccl_doctor.checks.nccl_choice import EXPLAINS, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise, ifname_command
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import FaultKind
from nccl_doctor.text.shell import word


@check(
    "NCD206",
    phrase="NCCL_SOCKET_IFNAME matches no interface",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=EXPLAINS,
    in_logs=("ib-fault", "plugin-fault", "wrong-interface"),
)
def ifname_no_match(view: View) -> Findings:
    """Yield a finding if NCCL finds no interface although some interfaces are running."""
    yield from findings(view, FaultKind.NO_MATCH)


def _advice(case: Case) -> Advice:
    if _OFF_SUBNET.search(case.first.text):
        return advise(
            f"{case.who} has no interface in the subnet of the address in NCCL_COMM_ID, which overrides "
            "NCCL_SOCKET_IFNAME.",
            "Unset NCCL_COMM_ID (torch does not need it), or set it to an address in a subnet of which every host has "
            "an address.",
        )
    if "NCCL_OOB_NET_IFNAME" in case.first.text:
        return advise(
            f"NCCL_OOB_NET_IFNAME matches none of NCCL's network devices on {case.who}.",
            "Correct or unset NCCL_OOB_NET_IFNAME: with RDMA, its value lists RDMA devices, such as mlx5_0, instead of "
            "network interfaces.",
        )
    value = case.log.facts.ifname
    setting = f"NCCL_SOCKET_IFNAME={word(value)} fits" if value else "NCCL_SOCKET_IFNAME fits"
    return advise(
        f"{setting} no interface on {case.who} (a name that differs between hosts, a space after a comma, an "
        "interface that is down).",
        "Names match as prefixes; a leading = means exact match, ^ excludes. To see the interfaces:",
        ifname_command(case),
    )


_OFF_SUBNET = re.compile(r"No usable listening interface found|in the same subnet as remote address")
"""Pattern for NCCL's messages that no interface is in the subnet of the address in NCCL_COMM_ID."""

# NCCL's bootstrap or its network finds no interface.
RULES = roots(
    r"Bootstrap ?: ?no socket interface found",
    "n1:71:2204 [0] bootstrap.cc:44 NCCL WARN Bootstrap : no socket interface found",
    r"NET/Socket ?: ?[Nn]o (?:usable listening )?interface found",
    "n1:71:71 [0] transport/net_socket.cc:48 NCCL WARN NET/Socket : no interface found",
    r"WARN (?:.*: )?No usable listening interface found",
    "n1:71:71 [0] transport/net_socket.cu:90 NCCL WARN No usable listening interface found",
    r"No interface found in the same subnet as remote address",
    "n1:7:7 [0] misc/socket.cc:242 NCCL WARN Net : No interface found in the same subnet as remote address 10.9.0.1<5>",
    r"NET/IB ?: No IP interface found",
    "n1:71:71 [0] transport/net_ib.cc:170 NCCL WARN NET/IB : No IP interface found.",
    r"no device found (?:matching|after excluding) .*verify NCCL_OOB_NET_IFNAME",
    "n1:7:7 [0] bootstrap.cc:90 NCCL WARN no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME",
)


def _without_interface(scene: Scene) -> list[Event]:
    """Return the events, with nccl-unknown-error replaced by ifname-no-match if the log suggests a wrong setting.

    The setting is considered wrong if NCCL_SOCKET_IFNAME is set but NCCL logged no interface.
    """
    facts = scene.log.facts
    if not facts.ifname or any(process.interfaces for process in facts.processes.values()):
        return scene.events
    return scene.renamed("ifname-no-match", Grade.LIKELY, lambda event: event.name == "nccl-unknown-error")


SIGNS = LogSigns(
    RULES, _advice, passes={PassStage.CONSEQUENCES: _without_interface}, interface=lambda case: case.log.facts.ifname
)
