"""Two machines have the same IP address on the subnet that NCCL uses.

What it means: depending on ARP caches, packets for one machine arrive at the other machine. Connections are refused,
reset or answered by the wrong machine, and the behaviour changes from minute to minute. The usual cause is a cloned
machine or a copied static network configuration.

How we know: an address that the hosts file or NCCL uses for one host is also an address of another machine (with a
different boot ID). The addresses of bridges inside a host, such as docker0, do not count as duplicates, because they
are often the same on every host. If NCCL uses the address of a bridge inside a host, the diagnosis is ifname-needed or
ifname-wrong-interface.

Fix: assign a different address to one of the machines.
"""

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.reachability import is_private
from nccl_doctor.snapshot.network import Names, addresses_by_name
from nccl_doctor.text.hostlist import fold, grouped


@check(
    "NCD216",
    phrase="same address",
    severity=Severity.ERROR,
    needs=(*NEEDS, "identity"),
    needs_nccl=True,
    explains=(
        "port-unreachable",
        CONNECTIONS,
        "ssh-host-key-changed",
        "ssh-host-key-unknown",
        "ssh-auth-failed",
        "ssh-unreachable",
    ),
)
def duplicate_address(view: View) -> Findings:
    """Yield one finding for each address that several machines have, including machines that were not reached."""
    nccl = view.nccl
    by_host = view.by_host
    resolutions = addresses_by_name(facts.resolution for _, facts in view.facts if isinstance(facts.resolution, Names))
    nodes = {node.name: {node.address, *resolutions.get(node.address, ())} for node in view.snapshot.cluster.nodes}
    wanted = {address for some in nodes.values() for address in some}
    wanted |= {host_nccl.chosen.address for host_nccl in by_host.values() if host_nccl.chosen is not None}
    owned: dict[str, dict[str, str]] = {}
    for name, host_nccl in by_host.items():
        for ip in {str(entry.address) for entry in host_nccl.interfaces.addresses} & wanted:
            if (where := _owner(host_nccl, ip)) is not None:
                owned.setdefault(ip, {})[name] = where
    lost = grouped((gone, name) for name in nodes.keys() - nccl.by_host.keys() for gone in nodes[name])
    for address in sorted(wanted):
        owners, away = owned.get(address, {}), lost.get(address, [])
        machines = {by_host[name].machine for name in owners}
        strangers = [name for name in owners if address not in nodes[name]]
        away = away if strangers else []
        if len(machines) > 1 or away:
            hosts = tuple(name for name in nodes if name in owners or name in away)
            yield Finding(
                hosts=hosts,
                message=f"{fold(hosts)} have the same IP address, {address}.",
                evidence=(
                    *(f"{name}: {address} is on {interface}" for name, interface in owners.items()),
                    *(f"{name}: the hosts file knows it by {address}, and it was not reached there" for name in away),
                ),
                facts={"address": address, "interfaces": owners},
                fix="Give each machine an address of its own.",
            )


def _owner(host_nccl: HostNccl, address: str) -> str | None:
    """Return the name of the interface with this address, or None if the interface is internal to the host."""
    if address.startswith(("127.", "fe80:")) or address == "::1":
        return None
    names = (entry.interface for entry in host_nccl.interfaces.addresses if entry.address == address)
    return next((name for name in names if not is_private(host_nccl, name)), None)
