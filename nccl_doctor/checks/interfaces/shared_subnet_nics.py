"""Two interfaces that NCCL uses on a host are on the same subnet.

What it means: Linux uses a single route to a subnet, so all packets to the subnet leave through one interface. By
default, each of the two interfaces answers ARP requests for both addresses. Traffic for the second address might arrive
on the wrong interface. Strict reverse-path filtering (rp_filter=1) drops packets that arrive on the wrong interface, so
some pairs of hosts can't connect. Without strict filtering, connections work, but the second link stays idle.

How we know: NCCL's bootstrap and NET/Socket use two addresses on the same subnet, and rp_filter, arp_ignore and
arp_announce do not separate the interfaces. If arp_ignore is at least 1, arp_announce is 2 and rp_filter is not 1, the
setup is assumed to be intentional and is not reported.

Fix: put each interface into its own subnet, bond the interfaces, or let NCCL use only one interface. Alternatively, set
rp_filter, arp_ignore and arp_announce, and add routing rules based on the source address.

See Documentation/networking/ip-sysctl.rst in the kernel's source, and NVIDIA/nccl issues 601, 1269 and 1581.
"""

from dataclasses import dataclass

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.base import Phased, Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.suggest import fix
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import Network


@dataclass(frozen=True)
class _Shared:
    """A subnet that is shared by several interfaces of a host.

    Attributes:
        settings: name of each interface, with the interface's values of the sysctls in ``KEYS``.
        strict: True if any of the interfaces has strict reverse-path filtering.
        meets: True if the host and at least one peer can reach each other, and ``strict`` is False.
    """

    network: Network
    settings: tuple[tuple[str, tuple[int, ...]], ...]
    strict: bool
    meets: bool


CARRIES = "only one of them carries the traffic"
KEYS = ("rp_filter", "arp_ignore", "arp_announce")


@check(
    "NCD212",
    phrase="two interfaces on one subnet",
    severity=Severity.WARNING,
    needs=NEEDS,
    needs_nccl=True,
    explains=("port-unreachable", CONNECTIONS),
)
def shared_subnet_nics(view: View) -> Findings:
    alike: dict[_Shared, list[str]] = {}
    for host, facts in view.facts:
        for network, links in shared(view.by_host[host.name]).items():
            if isinstance(facts.sysctls, Unknown):
                yield Unjudged((host.name,), f"rp_filter and ARP settings: {facts.sysctls.reason}")
                continue
            settings = tuple((link, tuple(effective(facts.sysctls, key, link) for key in KEYS)) for link in links)
            if all(rp_filter != 1 and ignore >= 1 and announce == 2 for _, (rp_filter, ignore, announce) in settings):
                continue  # with this setting, traffic of the interfaces is kept separate
            strict = any(rp_filter == 1 for _, (rp_filter, *_) in settings)
            meets = not strict and _meets_some(view.snapshot.mesh, host.name)
            alike.setdefault(_Shared(network, settings, strict, meets), []).append(host.name)
    for subnet, hosts in alike.items():
        yield _finding(view, subnet, hosts)


def _finding(view: View, shared_net: _Shared, hosts: list[str]) -> Finding:
    names = " and ".join(link for link, _ in shared_net.settings)
    both = "both" if len(shared_net.settings) == 2 else "all"
    advice = f"Let NCCL use one of {names}, bond them, or give each a subnet of its own."
    effect = "reverse-path filtering drops packets that arrive on the wrong interface" if shared_net.strict else CARRIES
    lines = [
        f"{link}: " + ", ".join(f"{key}={value}" for key, value in zip(KEYS, values, strict=True))
        for link, values in shared_net.settings
    ]
    return Finding(
        hosts=tuple(hosts),
        message=f"On {fold(hosts)}, NCCL's sockets use {names}, {both} on {shared_net.network}, so {effect}.",
        evidence=folded((host, line) for line in lines for host in hosts),
        facts={
            "network": str(shared_net.network),
            "sysctls": {link: dict(zip(KEYS, values, strict=True)) for link, values in shared_net.settings},
        },
        explains=(CONNECTIONS,) if shared_net.meets else None,
        fix=fix(view.nccl.suggestion, advice),
    )


def shared(host_nccl: HostNccl) -> dict[Network, tuple[str, ...]]:
    """Return each subnet in which NCCL uses several interfaces, with the names of these interfaces.

    An alias does not count as a separate interface.
    """
    subnets: dict[Network, dict[str, None]] = {}
    for use in (*((host_nccl.chosen,) if host_nccl.chosen is not None else ()), *host_nccl.choice.net_socket):
        for network in host_nccl.networks(use.address):
            if not network.is_link_local and network.prefixlen < network.max_prefixlen:
                subnets.setdefault(network, {})[use.name.partition(":")[0]] = None
    return {network: tuple(links) for network, links in subnets.items() if len(links) > 1}


def effective(sysctls: dict[str, str], key: str, link: str) -> int:
    """Return the higher of a sysctl's values for "all" and for the interface.

    The result is 0 if both are unset. See ip-sysctl.rst.
    """
    return max(int(sysctls.get(f"net.ipv4.conf.{where}.{key}", "0")) for where in ("all", link))


def _meets_some(mesh: Phased[Mesh], host: str) -> bool:
    """Return whether the host and at least one peer can connect to each other."""
    if not isinstance(mesh, Mesh):
        return False
    return any(not {(host, peer), (peer, host)} & mesh.failures.keys() for peer in mesh.ports.keys() - {host})
