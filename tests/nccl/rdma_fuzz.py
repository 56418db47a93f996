"""Compares the model of RDMA devices with real libnccls over random hosts: the program behind scripts/rdma-fuzz."""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nccl_doctor.nccl.rdma import FUSED_BY_TOPOLOGY, RdmaEntry, list_rdma
from nccl_doctor.nccl.versions import parse_version
from nccl_doctor.snapshot.system import RdmaDevice
from tests.nccl.ifname_fuzz import fetch, fuzz_parser
from tests.nccl.librdma import RdmaAnswer, RdmaHost, observe
from tests.nccl.rdma_hosts import gid

SETTINGS_PER_HOST = 5
LINK_LOCAL = "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001"
NAMES = (
    "mlx5_0",
    "mlx5_1",
    "mlx5_2",
    "mlx5_10",
    "mlx5_bond_0",
    "bnxt_re0",
    "rocep1s0f0",
    "ibp24s0",
    "irdma0",
    "mlx4_0",
)
ADDRESSES = ("10.0.0.1", "10.0.1.7", "192.168.3.4", "fd00::17", "2001:db8::5", "224.0.0.9")
TYPES = ("IB/RoCE v1", "RoCE v2")


@dataclass(frozen=True)
class RdmaTrial:
    """One question: libnccl's answer beside the model's."""

    devices: tuple[RdmaDevice, ...]
    setting: dict[str, str]
    libnccl: RdmaAnswer
    model: RdmaAnswer


def trials(library: Path, version: str, count: int, seed: int) -> list[RdmaTrial]:
    """Asks libnccl and the model ``count`` times (rounded up to whole hosts)."""
    source = random.Random(seed)
    hosts = [random_host(source) for _ in range(-(-count // SETTINGS_PER_HOST))]
    return [
        RdmaTrial(host.devices, setting, answer, modelled(host.devices, setting, version))
        for host, answers in zip(hosts, observe(library, hosts), strict=True)
        for setting, answer in zip(host.settings, answers, strict=True)
    ]


def modelled(devices: tuple[RdmaDevice, ...], setting: dict[str, str], version: str) -> RdmaAnswer:
    """The model's answer in libnccl's words."""
    listed = list_rdma(devices, setting, parse_version(version))
    if listed.version < FUSED_BY_TOPOLOGY:
        return RdmaAnswer(tuple(" + ".join(map(_words, nic.members)) for nic in listed.nics), ())
    entries = listed.entries if listed.refused is None else ()
    return RdmaAnswer(tuple(map(_words, entries)), tuple(one.gid.index for one in entries))


def _words(entry: RdmaEntry) -> str:
    return f"{entry.device.name}:{entry.port.number}/{'RoCE' if entry.is_roce else 'IB'}"


def random_host(source: random.Random) -> RdmaHost:
    """Up to six devices, and environments for them."""
    names = source.sample(NAMES, source.randint(0, 6))
    taken: set[str] = set()  # a function of a card is one device
    devices = tuple(_device(source, name, order, taken) for order, name in enumerate(names))
    return RdmaHost(devices, tuple(_setting(source, names) for _ in range(SETTINGS_PER_HOST)))


def _device(source: random.Random, name: str, order: int, taken: set[str]) -> RdmaDevice:
    card = source.randint(1, 4)
    own = f"0000:{card:02x}:{source.choice(('00', '00', '01'))}.{source.randint(0, 3)}"
    while own in taken:
        own = f"0000:{card:02x}:00.{source.randint(4, 15):x}"
    taken.add(own)
    ports = [_port(source, number + 1) for number in range(source.choice((1, 1, 1, 2)))]
    chip = f"b8ce:f603:000{card}:0000"
    return RdmaDevice.model_validate(
        {"name": name, "guid": chip, "pci": ["0000:00:01.0", own], "verbs": order, "ports": ports}
    )


def _port(source: random.Random, number: int) -> dict[str, object]:
    layer = source.choice(("Ethernet", "Ethernet", "Ethernet", "InfiniBand"))
    count = source.choice((1, 4, 8, 16))
    entries = []
    for index in range(count):
        if source.random() < 0.35:
            continue
        address = source.choice((LINK_LOCAL, gid(source.choice(ADDRESSES))))
        kind = source.choice(TYPES) if layer == "Ethernet" else None
        entries.append({"index": index, "gid": address, "type": kind})
    state = source.choice(("ACTIVE", "ACTIVE", "ACTIVE", "DOWN"))
    return {"number": number, "state": state, "link_layer": layer, "gid_count": count, "gids": entries}


def _setting(source: random.Random, names: list[str]) -> dict[str, str]:
    choices: dict[str, Callable[[], str]] = {
        "NCCL_IB_HCA": lambda: _hca(source, names),
        "NCCL_IB_GID_INDEX": lambda: source.choice(("-1", "0", "1", "3", "x", "3x", "-", "true")),
        "NCCL_IB_ROCE_VERSION_NUM": lambda: source.choice(("1", "2", "x")),
        "NCCL_IB_ADDR_FAMILY": lambda: source.choice(("AF_INET", "AF_INET6")),
        "NCCL_IB_ADDR_RANGE": lambda: source.choice(
            ("10.0.0.0/16", "10.0.1.0/24", "fd00::/8", "::/0", "10.0.0.0", "a/b")
        ),
        "NCCL_IB_DEVICE_PCI_ORDER": lambda: source.choice(("0", "1", "yes")),
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX": lambda: source.choice(("0", "1", "2")),
        # these three change neither list nor GID
        "NCCL_IB_PKEY_VALUE": lambda: source.choice(("0xffff", "0x8001")),
        "NCCL_IB_SORT_MERGE_NICS": lambda: source.choice(("0", "1")),
        "NCCL_IB_RAIL_POLICY": lambda: source.choice(("0", "1", "2")),
        "NCCL_IB_MERGE_NICS": lambda: source.choice(("0", "1", "no")),
        "NCCL_IB_MERGE_VFS": lambda: source.choice(("0", "1")),
    }
    odds = dict.fromkeys(choices, 0.25) | {"NCCL_IB_HCA": 0.6}
    return {name: make() for name, make in choices.items() if source.random() < odds[name]}


def _hca(source: random.Random, names: list[str]) -> str:
    known = names or ["mlx5_0"]
    items = []
    for _ in range(source.randint(1, 3)):
        name = source.choice((source.choice(known), source.choice(known)[:4], "mlx5", "mlx5_1", "none"))
        items.append(name + source.choice(("", "", ":1", ":2", ":")))
    return source.choice(("", "", "=", "^", "^=")) + source.choice((",", ",", ", ")).join(items)


def main() -> None:
    """Prints equal and different answers for each version; exit status 1 where any differs."""
    parser = fuzz_parser("rdma-fuzz", __doc__)
    parser.add_argument("--library", type=Path, help="this file, of the one version named")
    options = parser.parse_args()
    different = 0
    say = functools.partial(print, flush=True)
    for version in options.versions.split(","):
        library = options.library or fetch(version, options.cache)
        done = trials(library, version, options.trials, options.seed)
        wrong = [trial for trial in done if trial.libnccl != trial.model]
        different += len(wrong)
        listed = dict(sorted(Counter(len(trial.libnccl.nics) for trial in done).items()))
        say(f"{version}: {len(done) - len(wrong)} equal, {len(wrong)} different; ports listed: {listed}")
        for trial in wrong[:5]:
            say(f"  {trial.setting}\n    libnccl {trial.libnccl}\n    model   {trial.model}")
            for device in trial.devices:
                say(f"    {device.name} {device.pci} {device.ports}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
