"""Made RDMA devices and hosts that have them, for the model's tests."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.interfaces import Chosen, ChosenInterfaces
from nccl_doctor.nccl.rdma import list_rdma
from nccl_doctor.nccl.rdma_pairs import RdmaSide
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.network import Interfaces, Route
from nccl_doctor.snapshot.system import RdmaDevice

NEW: VersionNumbers = (2, 27, 7)
LOCAL = "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001"
ZERO = ""


def gid(text: str) -> str:
    """A GID as sysfs has it, of an address."""
    address = ipaddress.ip_address(text)
    whole = address if address.version == 6 else ipaddress.IPv6Address(0xFFFF << 32 | int(address))
    return whole.exploded


def table(*entries: str, netdev: str = "p0") -> list[dict[str, object]]:
    """GIDs of ``L1`` (link-local of RoCE v1), ``Z`` (empty) and ``10.0.0.1v2``."""
    found: list[dict[str, object]] = []
    for index, entry in enumerate(entries):
        if entry != "Z":
            address, version = (LOCAL, entry[1:]) if entry[0] == "L" else (gid(entry[:-2]), entry[-1])
            kind = {"1": "IB/RoCE v1", "2": "RoCE v2"}[version]
            found.append({"index": index, "gid": address, "type": kind, "interface": netdev})
    return found


def roce(
    name: str, *gids: str, netdev: str | None = None, state: str = "ACTIVE", pci: str = "", **more: object
) -> RdmaDevice:
    """A RoCE device of one port."""
    netdev = netdev or f"net-{name}"
    port = {"number": 1, "state": state, "link_layer": "Ethernet", "rate_gbps": 200.0, "gid_count": 256}
    return RdmaDevice.model_validate(
        {"name": name, "pci": [pci] if pci else [], "ports": [{**port, "gids": table(*gids, netdev=netdev)}], **more}
    )


def usual(name: str, address: str, **more: object) -> RdmaDevice:
    """The same with the table that an IPv4 address gives."""
    return roce(name, "L1", "L2", f"{address}v1", f"{address}v2", **more)  # type: ignore[arg-type]


def infiniband(name: str, *, state: str = "ACTIVE", prefix: str = "fe80:0000:0000:0000", **more: object) -> RdmaDevice:
    """An InfiniBand device of one port."""
    gids = [{"index": 0, "gid": f"{prefix}:ba3f:d2ff:fe00:0001"}]
    port = {"number": 1, "state": state, "link_layer": "InfiniBand", "gids": gids, "pkeys": [[0, "0xffff"]]}
    return RdmaDevice.model_validate({"name": name, "ports": [{**port, **more}]})


def side(
    host: str,
    devices: Sequence[RdmaDevice],
    *,
    version: VersionNumbers = NEW,
    routes: Sequence[tuple[str, str]] = (),
    variables: Mapping[str, str] | None = None,
) -> RdmaSide:
    """A host whose interfaces have the devices' addresses; ``routes``: destination and interface, by a gateway."""
    addresses = [
        {"interface": entry.interface, "family": "inet", "address": str(mapped), "netmask": str(net.netmask)}
        for device in devices
        for port in device.ports
        for entry in port.gids
        if (mapped := ipaddress.IPv6Address(entry.gid).ipv4_mapped) is not None
        for net in [ipaddress.ip_network(f"{mapped}/24", strict=False)]
    ]
    interfaces = Interfaces.model_validate({"links": [], "addresses": addresses})
    own = [(str(ipaddress.ip_network(f"{a['address']}/24", strict=False)), a["interface"], None) for a in addresses]
    via = [(destination, interface, "10.255.0.1") for destination, interface in routes]
    rows = tuple(
        Route.model_validate(
            {"family": "inet", "destination": to, "gateway": gateway, "interface": interface, "metric": 0}
        )
        for to, interface, gateway in dict.fromkeys([*own, *via])
    )
    nccl = HostNccl(
        host=host,
        machine=host,
        interfaces=interfaces,
        routes=rows,
        unreachable={},
        variables={},
        version=version,
        choice=ChosenInterfaces(Chosen("eth0", "192.0.2.1", ""), ()),
        source="model",
    )
    return RdmaSide(nccl, list_rdma(devices, variables or {}, version))
