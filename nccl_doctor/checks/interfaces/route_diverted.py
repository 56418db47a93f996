"""A host does not send packets to its peers directly over their common subnet.

What it means: a VPN client, a container engine or an old script has added a routing rule (`ip rule`) or a more specific
route. Packets for another host leave through a tunnel or gateway that has no route to that host, so connections time
out. If the host's replies also leave through the wrong tunnel or gateway, connections from all other hosts time out.

How we know: connections failed, no packet filter explains the failure, and `ip route get ADDRESS from OWN` on both ends
shows a wrong route. A route is wrong if it leads through an interface whose network does not contain the address, or
through a gateway from a routing table other than main. A gateway is also wrong if both hosts are in the same subnet
according to the destination's netmask, because the host's own netmask is then too narrow.

Fix: add a routing rule, with precedence over all other rules, that makes traffic inside the cluster's network use the
main table. If the wrong route is in the main table, delete the route or exclude the cluster's network from the VPN. `ip
rule` and `ip route show table all` show the current rules and routes.

See ip-rule(8) and ip-route(8).
"""

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.interfaces.route_missing import Hindered, hindered_hosts
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.firewall.route_lookup import MAIN_TABLES, RouteFault
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import IpRule
from nccl_doctor.text.hostlist import fold


@check(
    "NCD219",
    phrase="packets leave through another interface",
    severity=Severity.ERROR,
    needs=("mesh",),
    explains=(CONNECTIONS,),
)
def route_diverted(view: View) -> Findings:
    for hindered in (*hindered_hosts(view, "diverted"), *hindered_hosts(view, "masked")):
        lines = [_lines(fault) for fault in hindered.route_faults]
        ways = " and ".join(dict.fromkeys(words for words, _ in lines))
        peers = sorted(hindered.peers)
        yield Finding(
            hosts=(hindered.host,),
            message=f"{hindered.host} sends packets for {fold(peers)} {ways} instead of directly over their common "
            "subnet.",
            evidence=tuple(dict.fromkeys(evidence for _, evidence in lines)),
            facts={"to": peers},
            details=Details(failed=tuple(hindered.pairs)),
            fix=_fix(hindered),
        )


def _lines(fault: RouteFault) -> tuple[str, str]:
    way = fault.way
    where = f"through {way.dev}" if way.gateway is None else f"to the gateway {way.gateway} through {way.dev}"
    source = f" from {way.source}" if way.source else ""
    via = f" via {way.gateway}" if way.gateway else ""
    answer = f"{fault.host}: ip route get {way.to}{source}: dev {way.dev}{via}, table {way.table}"
    table = f" (routing table {way.table})" if way.table not in MAIN_TABLES else ""
    owner = "by its own netmask" if fault.kind == "masked" else f"on {fault.usual}"
    return f"{where}{table}", f"{answer}; {way.to} lies in {fault.network} {owner}"


def _fix(hindered: Hindered) -> Fix:
    masked = next((fault for fault in hindered.route_faults if fault.kind == "masked"), None)
    if masked is not None:
        return Fix(
            summary=f"Give {masked.usual} there the prefix length of the others, {masked.network}, in what sets up the "
            "network (`ip addr show` prints it), or give the gateway a way to them.",
            needs_root=True,
        )
    networks = dict.fromkeys(fault.network for fault in hindered.route_faults if fault.network is not None)
    if any(fault.way.table in MAIN_TABLES for fault in hindered.route_faults):
        return Fix(
            summary="Take out the route that leads there (`ip route` shows it), or leave the cluster's network out of "
            "what has set it: a VPN's allowed addresses, for example.",
            needs_root=True,
        )
    summary = "Let the cluster's own network go by the main table (for good: in what sets up the network):"
    return pasted(summary, on(hindered.host, *map(IpRule, map(str, networks))), needs_root=True)
