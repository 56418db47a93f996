"""Random hosts for the comparison with real libnccl: links, addresses, and the settings to try on them."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = (
    *("eth0", "eth1", "eth10", "eno1", "enp3s0f0", "ens5", "ib0", "ib1", "ibp1s0", "ibmgmt", "docker0", "docker1"),
    *("docker_gwbridge", "virbr0", "virbr1", "br-12ab", "veth1a", "wg0", "tailscale0", "cni0", "lo1", "bond0"),
    *("bond0.7", "e", "lan", "ETH0"),
)
KINDS = ("veth", "bridge", "ifb")
STATES = ("up", "up", "up", "down", "no-carrier")


@dataclass(frozen=True)
class Layout:
    """One host.

    Attributes:
        batch: what ``ip -batch`` makes of an empty network namespace.
        settings: environments to ask libnccl under.
    """

    batch: str
    settings: tuple[dict[str, str], ...]


def layout(source: random.Random, settings: int) -> Layout:
    """A host with up to six interfaces in random states, and ``settings`` environments for it."""
    names = source.sample(NAMES, source.randint(0, 6))
    lines = ["link set lo up"] if source.random() < 0.9 else []
    addresses: list[str] = []
    for index, name in enumerate(names):
        lines += _link(source, name, index)
        given = _addresses(source, name, index)
        lines += given
        addresses += [line.split()[2].partition("/")[0] for line in given]
    return Layout("\n".join(lines) + "\n", tuple(_setting(source, names, addresses) for _ in range(settings)))


def _link(source: random.Random, name: str, index: int) -> list[str]:
    kind, state = source.choice(KINDS), source.choice(STATES)
    if kind == "veth":
        lines = [f"link add {name} type veth peer name zz{index}"]
        # a link-local address of the kernel's own making is tentative for a second, and bind(2) then fails
        lines += [f"link set zz{index} addrgenmode none"]
        lines += [] if state == "no-carrier" else [f"link set zz{index} up"]
    else:
        lines = [f"link add {name} type {kind}"]
    lines += [f"link set {name} addrgenmode none"]
    return lines + ([] if state == "down" else [f"link set {name} up"])


def _addresses(source: random.Random, name: str, index: int) -> list[str]:
    lines = []
    if source.random() < 0.8:
        lines.append(f"addr add 10.0.{index}.5/24 dev {name}")
    if source.random() < 0.2:
        label = f"{name}:1"
        lines.append(f"addr add 10.9.{index}.5/24 dev {name}" + (f" label {label}" if len(label) < 16 else ""))
    if source.random() < 0.3:
        lines.append(f"addr add 2001:db8:{index}::5/64 dev {name} nodad")
    if source.random() < 0.2:
        lines.append(f"addr add fe80::{index + 1:x}/64 dev {name} nodad")
    source.shuffle(lines)
    return lines


def _setting(source: random.Random, names: list[str], addresses: list[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    if source.random() < 0.8:
        env["NCCL_SOCKET_IFNAME"] = _ifname(source, names)
    if source.random() < 0.25:
        env["NCCL_SOCKET_FAMILY"] = source.choice(("AF_INET", "AF_INET6", "AF_INET6", "af_inet6", "ipv4", ""))
    if source.random() < 0.2:
        env["NCCL_COMM_ID"] = _comm_id(source, names, addresses)
    return env


def _ifname(source: random.Random, names: list[str]) -> str:
    sign = source.choice(("", "", "", "=", "^", "^=", "=^"))
    tokens = [_token(source, names) for _ in range(source.choice((0, 1, 1, 1, 2, 3, 18)))]
    return sign + source.choice((",", ",", ",", ", ", ",,")).join(tokens) + source.choice(("", "", "", ","))


def _token(source: random.Random, names: list[str]) -> str:
    name = source.choice((*names, *NAMES, "lo", "bogus0", "10.0.0.5", ""))
    name = name[: source.randint(0, len(name))] if source.random() < 0.4 else name
    return name + source.choice(("", "", "", "", ":1", ":1:2", ":", ":1:2:3")) if name else source.choice(("", ":1"))


def _comm_id(source: random.Random, names: list[str], addresses: list[str]) -> str:
    address = source.choice((*addresses, "10.0.1.77", "10.250.0.1", "127.0.0.1", "fe80::99", "2001:db8:1::77"))
    if ":" in address:
        zone = f"%{source.choice((*names, 'lo'))}" if address.startswith("fe80") and source.random() < 0.7 else ""
        return f"[{address}{zone}]:29600"
    return address + source.choice((":29600", ":29600", "", ":x"))
