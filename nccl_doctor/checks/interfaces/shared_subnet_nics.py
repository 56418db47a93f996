"""Two interfaces that NCCL uses on a host are on the same subnet.

What it means: Linux has one route to a subnet, so packets for both addresses leave through one interface, and by
default either interface answers ARP for both. Traffic of the second one comes in where it is not expected: strict
reverse-path filtering (rp_filter=1) drops it, and some pairs of hosts fail while others work; without it the second
link just idles.

How we know: the addresses that NCCL's bootstrap and NET/Socket use, and the host's rp_filter, arp_ignore and
arp_announce. Where arp_ignore is 1, arp_announce 2 and rp_filter not 1, somebody set this up on purpose.

Fix: put each interface on a subnet of its own, bond them, or let NCCL use one; or set the three sysctls and add source
routing.

See Documentation/networking/ip-sysctl.rst in the kernel's source, and NVIDIA/nccl issues 601, 1269 and 1581.
"""

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Phased, Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.suggest import fix
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.text.inet import Network

CARRIES = "one of them carries the traffic of both"
KEYS = ("rp_filter", "arp_ignore", "arp_announce")


@check(
    "NCD212",
    severity=Severity.WARNING,
    needs=NEEDS,
    needs_nccl=True,
    explains=("port-unreachable", CONNECTIONS),
)
def shared_subnet_nics(view: View) -> Findings:
    """Yields one finding a host and subnet, unless sysctls show intent."""
    for host, facts in view.facts:
        for network, links in shared(view.by_host[host.name]).items():
            if isinstance(facts.sysctls, Unknown):
                yield Unjudged((host.name,), f"rp_filter and ARP settings: {facts.sysctls.reason}")
                continue
            settings = {link: {key: effective(facts.sysctls, key, link) for key in KEYS} for link in links}
            each = settings.values()
            if all(v["rp_filter"] != 1 and v["arp_ignore"] >= 1 and v["arp_announce"] == 2 for v in each):
                continue  # so the interfaces are kept apart
            names = " and ".join(settings)
            advice = f"Let NCCL use one of {names}, bond them, or give each a subnet of its own."
            strict = any(values["rp_filter"] == 1 for values in each)
            effect = "reverse-path filtering drops what comes in by the wrong one" if strict else CARRIES
            meets = not strict and _meets_some(view.snapshot.mesh, host.name)
            yield Finding(
                hosts=(host.name,),
                message=f"On {host.name} NCCL uses {names}, both on {network}: {effect}.",
                evidence=tuple(
                    f"{host.name}: {link}: " + ", ".join(f"{key}={value}" for key, value in values.items())
                    for link, values in settings.items()
                ),
                facts={"network": str(network), "sysctls": settings},
                explains=(CONNECTIONS,) if meets else None,
                fix=fix(view.nccl.suggestion, advice),
            )


def shared(own: HostNccl) -> dict[Network, tuple[str, ...]]:
    """The subnets on which NCCL uses several links; aliases don't count."""
    found: dict[Network, dict[str, None]] = {}
    for use in (*((own.chosen,) if own.chosen is not None else ()), *own.choice.net_socket):
        for network in own.networks(use.address):
            if not network.is_link_local and network.prefixlen < network.max_prefixlen:
                found.setdefault(network, {})[use.name.partition(":")[0]] = None
    return {network: tuple(links) for network, links in found.items() if len(links) > 1}


def effective(sysctls: dict[str, str], key: str, link: str) -> int:
    """The higher of conf.all and the link's own (ip-sysctl.rst); 0 where the kernel has no such file."""
    return max(int(sysctls.get(f"net.ipv4.conf.{where}.{key}", "0")) for where in ("all", link))


def _meets_some(mesh: Phased[Mesh], host: str) -> bool:
    """Tells whether a peer and the host reach each other."""
    if not isinstance(mesh, Mesh):
        return False
    return any(not {(host, peer), (peer, host)} & mesh.failures.keys() for peer in mesh.ports.keys() - {host})
