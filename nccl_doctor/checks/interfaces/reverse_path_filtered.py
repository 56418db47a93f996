"""Strict reverse-path filtering on a host drops packets from its peers.

What it means: with rp_filter=1, the kernel drops packets that do not arrive on the interface through which the kernel
would reply. For example, a static route or policy rule on a peer can send packets through a network that the host does
not use for its replies. The host then silently drops these packets. Connections time out in one or both directions.

How we know: connections failed, and `ip route get TO from SOURCE iif DEV` on the host shows that the kernel drops the
packets. DEV is the interface that shares a network with the peer's outgoing interface. The effective rp_filter of the
receiving interface is 1 (strict). The effective value is the higher of the values for net.ipv4.conf.all and for the
interface.

Fix: give the peer a route through the right interface. Alternatively, set rp_filter=2 (loose) on the receiving
interface, so that the host accepts packets to which it can reply through any interface.

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
    for entry in hindered_hosts(view, "filtered"):
        names = list(dict.fromkeys(fault.usual for fault in entry.route_faults if fault.usual))
        # a VLAN's name contains a dot, so sysctl(8) needs slashes between the parts
        keys = [("/" if "." in name else ".").join(("net", "ipv4", "conf", name, "rp_filter")) for name in names]
        facts = next(facts for host, facts in view.facts if host.name == entry.host)
        sysctls = facts.sysctls if isinstance(facts.sysctls, dict) else {}
        # the interface's own value might be 0 although conf.all makes the filter strict
        values = [sysctls.get(f"net.ipv4.conf.{name}.rp_filter") for name in names]
        earlier = tuple(value for value in values if value is not None)
        peers = fold(sorted(entry.peers))
        yield Finding(
            hosts=(entry.host,),
            message=f"{entry.host} drops packets from {peers}: they arrive on {' and '.join(names)}, where "
            "rp_filter is strict, but replies would leave through another interface.",
            evidence=tuple(
                f"{entry.host}: ip route get {way.to} from {way.source} iif {way.iif}: {way.error}; rp_filter=1"
                for way in dict.fromkeys(fault.way for fault in entry.route_faults)
            ),
            facts={"interfaces": names, "to": sorted(entry.peers)},
            details=Details(failed=tuple(entry.pairs)),
            fix=pasted(
                f"Give {peers} a route to {entry.host} by the right interface; or filter loosely (for good: the same "
                "setting in a .conf file in /etc/sysctl.d):",
                on(
                    entry.host,
                    SysctlSet(tuple((key, "2") for key in keys), earlier if len(earlier) == len(keys) else ()),
                ),
                needs_root=True,
            ),
        )
