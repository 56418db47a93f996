"""Strict reverse-path filtering on a host drops packets from its peers.

What it means: with rp_filter=1 the kernel drops a packet that arrives on a different interface from the one through
which it would answer. If hosts have two networks and one of them sends through the other network (a static route, a
policy rule), its packets are dropped silently: connections time out, in one direction or in both.

How we know: connections failed, and the kernel of the host was asked whether it would accept the packet on the
interface that shares a network with the peer's outgoing interface (what `ip route get TO from SOURCE iif DEV` prints).
It would not, and rp_filter is strict there (the higher of net.ipv4.conf.all and the interface's own value).

Fix: give the peer a route through the right interface, or let the host accept packets that it could answer through any
interface: rp_filter=2 (loose) on that interface.

See Documentation/networking/ip-sysctl.rst in the kernel's source, and RFC 3704.
"""

from nccl_doctor.checks.effects import SILENCE
from nccl_doctor.checks.interfaces.route_missing import hindered_hosts
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.model.finding import Details, Finding, Severity, on
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.text.hostlist import fold


@check("NCD220", phrase="packets dropped by rp_filter", severity=Severity.ERROR, needs=("mesh",), explains=(SILENCE,))
def reverse_path_filtered(view: View) -> Findings:
    for found in hindered_hosts(view, "filtered"):
        names = list(dict.fromkeys(fault.usual for fault in found.route_faults if fault.usual))
        # a VLAN's name contains a dot, so sysctl(8) needs slashes between the parts
        keys = [("/" if "." in name else ".").join(("net", "ipv4", "conf", name, "rp_filter")) for name in names]
        peers = fold(sorted(found.peers))
        yield Finding(
            hosts=(found.host,),
            message=f"{found.host} drops packets from {peers}: they arrive on {' and '.join(names)}, where "
            "rp_filter is strict, but replies would leave through another interface.",
            evidence=tuple(
                f"{found.host}: ip route get {way.to} from {way.source} iif {way.iif}: {way.error}; rp_filter=1"
                for way in dict.fromkeys(fault.way for fault in found.route_faults)
            ),
            facts={"interfaces": names, "to": sorted(found.peers)},
            details=Details(failed=tuple(found.pairs)),
            fix=pasted(
                f"Give {peers} a route to {found.host} by the right interface; or filter loosely (for good: the same "
                "setting in /etc/sysctl.d/):",
                on(found.host, SysctlSet(tuple((key, "2") for key in keys), ("1",) * len(keys))),
                needs_root=True,
            ),
        )
