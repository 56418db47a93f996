"""RDMA devices for hosts of the lab: network interfaces that are real, and what /sys and /dev would show of devices.

The kernel here may have no RDMA. A host's /sys/class gives way to a tmpfs with links to the rest, and a made
infiniband; /dev to one with nodes that open.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from tests.lab.cluster import Lab
from tests.lab.host import NETWORK, LabHost, inside
from tests.lab.machine import FIRST_INDEX, ip_batch

LINK_LOCAL = "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001"
EMPTY = ":".join(["0000"] * 8)


@dataclass
class Device:
    """A RoCE device of one port; ``net``: the rail that its network interface is on, and of which it has an address."""

    name: str
    net: int
    address: str | None = None  # None where the interface has none
    state: str = "4: ACTIVE"
    rate: str = "200 Gb/sec (4X HDR)"
    at: int = 2  # the index of the address' first GID
    width: int = 16
    node: str = "666"  # the mode of its /dev/infiniband/uverbsN; "" where there is none
    kinds: tuple[str, ...] = ("IB/RoCE v1", "RoCE v2")
    more: dict[str, str] = field(default_factory=dict)

    def files(self, netdev: str, bus: str) -> dict[str, str]:
        """What /sys/class/infiniband has of it, with its PCI device."""
        gids = dict.fromkeys(range(16), EMPTY)
        told: dict[int, str] = {}
        if self.state == "4: ACTIVE":
            gids |= {0: LINK_LOCAL, 1: LINK_LOCAL}
            told |= {0: "IB/RoCE v1", 1: "RoCE v2"}
            if self.address is not None:
                number = 0xFFFF << 32 | int(ipaddress.IPv4Address(self.address))
                for index, kind in enumerate(self.kinds, self.at):
                    gids[index], told[index] = ipaddress.IPv6Address(number).exploded, kind
        port = f"class/infiniband/{self.name}/ports/1"
        pci = f"devices/pci0000:00/0000:00:01.0/{bus}"
        return {
            f"{port}/state": self.state,
            f"{port}/rate": self.rate,
            f"{port}/link_layer": "Ethernet",
            f"{port}/pkeys/0": "0xffff",
            **{f"{port}/gids/{index}": gid for index, gid in gids.items()},
            **{f"{port}/gid_attrs/types/{index}": kind for index, kind in told.items()},
            **{f"{port}/gid_attrs/ndevs/{index}": netdev for index in told},
            **{f"{pci}/{name}_link_speed": "32.0 GT/s PCIe" for name in ("current", "max")},
            f"{pci}/max_link_width": "16",
            f"{pci}/current_link_width": str(self.width),
            f"{pci}/numa_node": "0",
        }


_OWN_FILES = """
mkdir /run/dev && mount -t tmpfs -o mode=755 tmpfs /run/dev && cd /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty .
ln -s /proc/self/fd fd; ln -s pts/ptmx ptmx; mkdir pts shm infiniband
mount --bind /dev/pts pts; mount --bind /dev/shm shm; mount --move /run/dev /dev
mkdir -p /run/sys/class /run/whole && mount --bind /sys /run/whole
for one in /run/whole/class/*; do ln -s "$one" /run/sys/class/; done
mount --bind /run/sys/class /sys/class
"""


def give_rdma(lab: Lab, host: LabHost, devices: list[Device]) -> None:
    """Gives a host these devices, the interface of the n-th being pN on the bridge ``railNET`` of the switch."""
    files: dict[str, str] = {}
    lines = ["set -e", _OWN_FILES]
    for place, device in enumerate(devices):
        netdev, bus = f"p{place}", f"0000:0{place + 1}:00.0"
        _wire(lab, host, device, netdev, FIRST_INDEX + 10 + place)
        files |= {f"/run/sys/{path}": text for path, text in device.files(netdev, bus).items()}
        files[f"/run/sys/class/infiniband_verbs/uverbs{place}/ibdev"] = device.name
        folder = f"/run/sys/class/infiniband/{device.name}"
        lines.append(f"mkdir -p {folder}; ln -s /run/sys/devices/pci0000:00/0000:00:01.0/{bus} {folder}/device")
        lines += [f"mknod -m {device.node} /dev/infiniband/uverbs{place} c 1 3"] if device.node else []
    host.run("\n".join(lines))
    for path, text in files.items():
        host.write(path, f"{text}\n")


def _wire(lab: Lab, host: LabHost, device: Device, netdev: str, index: int) -> None:
    bridge, port = f"rail{device.net}", f"{host.name}{netdev}"
    if f" {bridge}:" not in lab.switch(["ip", "-o", "link"]):
        lab.switch(["ip", "link", "add", bridge, "type", "bridge"])
        lab.switch(["ip", "link", "set", bridge, "up"])
    link = f"link add name {netdev} index {index} type veth peer name {port} netns {lab.supervisor}\n"
    inside(host.pid, NETWORK, lambda: ip_batch(link))  # the supervisor's PID means nothing in the host's PID namespace
    lab.switch(["ip", "link", "set", port, "master", bridge, "up"])
    if device.address is not None:
        host.run(["ip", "address", "add", f"{device.address}/24", "dev", netdev])
    host.run(["ip", "link", "set", netdev, "up"])
    host.wait_until(lambda: host.runs(netdev), f"a running {netdev}")
