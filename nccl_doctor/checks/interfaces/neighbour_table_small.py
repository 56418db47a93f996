"""The neighbour table of a host's kernel is too small for the number of peers on the host's subnet.

What it means: to send packets to another host on the same network, the kernel needs the other host's hardware address
in its neighbour table (ARP, NDP). The neighbour table has space for `net.ipv4.neigh.default.gc_thresh3` entries (1024
by default), which all interfaces and containers of the host share. If the table overflows, connections to healthy hosts
time out at random, and the kernel logs "neighbour: arp_cache: neighbor table overflow!". If the number of entries is
between gc_thresh2 and gc_thresh3, the kernel removes entries early, which only costs time.

How we know: gc_thresh3 is compared with the number of cluster addresses in the networks of the host's interfaces.

Fix: raise gc_thresh1, gc_thresh2 and gc_thresh3 on every host. The limits cost memory only for entries that are in use.

References: arp(7); the kernel's Documentation/networking/ip-sysctl.rst.
"""

import ipaddress
from collections.abc import Iterable, Iterator

from nccl_doctor.checks.effects import SILENCE
from nccl_doctor.checks.view import Findings, View, check, failed_where, on_each, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import Network, address_of

NAME = "net.ipv4.neigh.default.gc_thresh"
LIMIT = f"{NAME}3"
FEW = 128
"""Linux's default for gc_thresh1.

The kernel removes no entries from a table with fewer entries than gc_thresh1, regardless of the other limits.
"""

ROOM = 4
"""Minimum number of table entries per peer that the recommended limit allows.

Gateways, storage and containers also need entries.
"""


@check(
    "NCD217",
    phrase="neighbour table is small",
    severity=Severity.WARNING,
    needs=("interfaces", "resolution"),
    explains=("port-unreachable", SILENCE),
)
def neighbour_table_small(view: View) -> Findings:
    short: dict[tuple[int, int], list[str]] = {}
    names = frozenset(node.address for node in view.snapshot.cluster.nodes)
    cache: _Cache = {}
    for host, facts in view.facts:
        peers = _peers(facts, names, cache)
        text = facts.sysctls.get(LIMIT) if isinstance(facts.sysctls, dict) else None
        limit = None if text is None else int(text)
        if limit is None and peers > FEW:
            yield Unjudged((host.name,), f"{LIMIT} could not be read")
        elif limit is not None and peers > limit:
            short.setdefault((limit, peers), []).append(host.name)
    for (limit, peers), hosts in short.items():
        raised = 1 << (peers * ROOM).bit_length()
        limits = ((3, raised), (2, raised // 2), (1, raised // 8))
        summary = "Raise the limits (for good: the same settings in a .conf file in /etc/sysctl.d):"
        raising = SysctlSet(tuple((f"{NAME}{number}", str(value)) for number, value in limits), (str(limit),))
        # with a full table the kernel drops the packet or the ARP answer: "no route to host" (net/ipv4/arp.c)
        slow = [dial for dial in view.dials.unexplained if dial.outcome in ("timed-out", "no-route")]
        lost = {dial for dial in slow if not {dial.src, dial.dst}.isdisjoint(short[limit, peers])}
        yield Finding(
            hosts=tuple(hosts),
            message=f"The neighbour (ARP) table on {fold(hosts)} holds at most {limit} "
            f"entr{'y' if limit == 1 else 'ies'}"
            f", but {peers} other hosts of the cluster are on the same subnet.",
            evidence=(f"{LIMIT} is {limit}",),
            facts={"limit": limit, "peers": peers},
            details=Details(failed=failed_where(view, lost.__contains__)),
            fix=pasted(summary, on_each(hosts, raising), needs_root=True),
        )


_Cache = dict[tuple[frozenset[Network], bool], frozenset[str]]
"""Cache that maps each set of subnets to the cluster's addresses in these subnets.

A key consists of the subnets and a flag, which is True if the host uses the resolver answers that all hosts share.
"""


def _peers(facts: HostFacts, names: frozenset[str], cache: _Cache) -> int:
    """Return the number of other hosts' IPv4 addresses in the host's own subnets."""
    interfaces, resolved = known(facts.interfaces), known(facts.resolution)
    nets = frozenset(
        ipaddress.ip_interface(f"{entry.address}/{entry.netmask}").network
        for entry in interfaces.addresses
        if entry.family == "inet" and entry.netmask
    )
    key = nets, resolved.source is not None
    if key not in cache:
        shared = (answer for name in names if (answer := resolved.shared(name)) is not None)
        cache[key] = frozenset(_beside(nets, (text for answer in shared for text in answer.addresses)))
    own_addresses = {entry.address for entry in interfaces.addresses}
    deviating = (text for name in resolved.own.keys() & names for text in resolved.own[name].addresses)
    return len((cache[key] | frozenset(_beside(nets, deviating))) - own_addresses)


def _beside(nets: frozenset[Network], texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        address = address_of(text)
        if address.version == 4 and any(address in net for net in nets):
            yield text


ADVICE = make_advice(
    "The kernel's neighbour (ARP) table on {who} has fewer entries than there are hosts on the subnet, so packets to "
    "the rest are dropped.",
    "Raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 well above the number of hosts, on every host.",
)

# The kernel's message.
RULES = (root(r"neighbou?r table overflow", "[ 4242.1] neighbour: arp_cache: neighbor table overflow!"),)

SIGNS = LogSigns(RULES, ADVICE)
