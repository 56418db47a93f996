"""The interface that NCCL is configured to use is down or has no carrier.

What it means: from 2.28.3, NCCL ignores interfaces that are not running, and fails with "Bootstrap : no socket
interface found" if no interface is left. Earlier versions of NCCL use interfaces that are down but have an address, so
the other hosts can't connect.

If NCCL_SOCKET_IFNAME is not set, NCCL on the affected host uses another interface, which might be in a different
network from the interfaces of the other hosts.

How we know: IFF_RUNNING is not set in the interface's flags (netdevice(7)). The kernel clears the IFF_RUNNING flag if
the interface is switched off, the cable is unplugged, or the other end is down. The diagnosis is also based on the
rules of the host's NCCL version, and on failed connections to addresses in the interface's network.

Fix: bring the interface up (`ip link set NAME up`), check the cable and the switch port, or use another interface.
"""

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.interfaces.route_missing import Hindered, answer_of, hindered_hosts
from nccl_doctor.checks.nccl_choice import MISLED, NEEDS, bring_up, findings
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.nccl.cluster_nccl import FaultKind
from nccl_doctor.text.hostlist import fold, grouped

MISSED = ("ifname-wrong-interface", "ifname-needed", "ifname-ambiguous")


@check(
    "NCD211",
    phrase="interface is down",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=(*MISSED, *MISLED, CONNECTIONS),
)
def interface_down(view: View) -> Findings:
    named: set[str] = set()
    for result in findings(view, FaultKind.DOWN):
        if isinstance(result, Finding):
            named.update(result.hosts)
        yield result
    idle = hindered_hosts(view, "down") if view.nccl.mesh is not None else ()
    for group in grouped((_state(view, item), item) for item in idle if item.host in {*view.by_host} - named).values():
        yield _unused(view, group)


def _state(view: View, hindered: Hindered) -> tuple[str, str, bool]:
    fault = next(iter(hindered.route_faults))
    link = view.by_host[hindered.host].link(fault.usual or "")
    return fault.usual or "", str(fault.network), link is not None and "up" not in link.flags


def _unused(view: View, group: list[Hindered]) -> Finding:
    """Return the finding for hosts whose packets take another route because an interface is down."""
    name, network, is_off = _state(view, group[0])
    hosts = tuple(item.host for item in group)
    ways = [(item.host, fault.way) for item in group for fault in item.route_faults]
    peers = {peer for item in group for peer in item.peers}.difference(hosts) or group[0].peers
    addresses = list(dict.fromkeys(way.to for _, way in ways))
    suggestion = view.nccl.suggestion
    common = suggestion.common if suggestion is not None else None
    other = f", or have NCCL use {common} (NCCL_SOCKET_IFNAME='={common}' on every host)" if common is not None else ""
    return Finding(
        hosts=hosts,
        message=f"{name} ({network}) on {fold(hosts)} {'is disabled' if is_off else 'has no carrier'}, so there is "
        f"no direct route to {fold(sorted(peers))} ({', '.join(addresses)}).",
        evidence=folded((host, f"ip route get {way.to}: {answer_of(way)}") for host, way in ways),
        facts={"interface": name, "to": addresses},
        details=Details(failed=tuple(pair for item in group for pair in item.pairs)),
        fix=bring_up(view.nccl, hosts, name, other),
    )
