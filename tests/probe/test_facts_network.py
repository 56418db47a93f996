from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import netlink
from nccl_doctor.probe.facts import network
from nccl_doctor.probe.facts import network as interfaces
from nccl_doctor.probe.facts import network as routes
from nccl_doctor.probe.facts.network import list_sockets
from nccl_doctor.probe.tools import Unavailable, side_by_side
from nccl_doctor.snapshot.network import Interfaces, Names, Resolution
from tests.patience import LONG_S, crowd

ROOT = Path(__file__).parents[2]


def soon() -> float:
    return time.monotonic() + LONG_S


# --- interfaces ---------------------------------------------------------------------------------------------------


def attributes(**values: bytes) -> bytes:
    numbers = {"address": interfaces.IFA_ADDRESS, "local": interfaces.IFA_LOCAL, "label": interfaces.IFA_LABEL}
    parts = ((numbers[name], value) for name, value in values.items())
    return b"".join(struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4) for kind, value in parts)


def parsed(family: int, prefix: int, index: int, **values: bytes) -> dict[str, Any] | None:
    body = struct.pack("=BBBBI", family, prefix, 0, 0, index) + attributes(**values)
    return interfaces.parse_address(body, {1: "lo", 7: "eth0"})


def ip(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (parsed(socket.AF_INET, 24, 7, address=ip("10.0.0.1"), local=ip("10.0.0.1"), label=b"eth0:1\0"), ("eth0:1", "10.0.0.1", "255.255.255.0", 0)),
        (parsed(socket.AF_INET, 32, 7, address=ip("10.9.0.2"), local=ip("10.0.0.1")), ("eth0", "10.0.0.1", "255.255.255.255", 0)),
        (parsed(socket.AF_INET, 0, 7, local=ip("10.0.0.1")), ("eth0", "10.0.0.1", "0.0.0.0", 0)),
        (parsed(socket.AF_INET, 255, 7, local=ip("10.0.0.1")), ("eth0", "10.0.0.1", "255.255.255.255", 0)),
        (parsed(socket.AF_INET6, 64, 7, address=ip("fe80::2")), ("eth0", "fe80::2", "ffff:ffff:ffff:ffff::", 7)),
        (parsed(socket.AF_INET6, 16, 7, address=ip("ff12::1")), ("eth0", "ff12::1", "ffff::", 7)),
        (parsed(socket.AF_INET6, 128, 1, address=ip("::1")), ("lo", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0)),
        (parsed(socket.AF_INET6, 128, 7, address=ip("fd00::2"), local=ip("fd00::1")), ("eth0", "fd00::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0)),
        (parsed(socket.AF_INET6, 64, 8, address=ip("fd00::1")), None),
        (parsed(socket.AF_INET, 24, 7), None),
        (parsed(socket.AF_BRIDGE, 24, 7, local=ip("10.0.0.1")), None),
    ],
)  # fmt: skip
def test_an_address_is_told_as_getifaddrs_tells_it(
    row: dict[str, Any] | None, expected: tuple[str, str, str, int] | None
) -> None:
    told = row and (row["interface"], row["address"], row["netmask"], row["scope_id"])
    assert told == expected


class Kernel:
    """A netlink socket whose dumps are these messages, one after the other: kind, flags, body."""

    def __init__(self, *messages: tuple[int, int, bytes]) -> None:
        self.messages = list(messages)
        self.dumps = 0

    def __call__(self, *_args: Any) -> AbstractContextManager[Kernel]:
        return nullcontext(self)

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, _request: bytes) -> None:
        self.dumps += 1

    def recv(self, _size: int) -> bytes:
        kind, flags, body = self.messages.pop(0)
        return netlink.HEADER.pack(netlink.HEADER.size + len(body), kind, flags, 1, 0) + body


DONE = (netlink.NLMSG_DONE, 0, bytes(4))
CHANGED = (20, netlink.NLM_F_DUMP_INTR, b"half")


def read(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, seconds: float = LONG_S) -> list[list[bytes]]:
    monkeypatch.setattr(socket, "socket", kernel)
    return netlink.read_tables([(18, b""), (22, b"")], time.monotonic() + seconds)


def test_a_table_that_changed_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel((16, 0, b"link"), DONE, (20, 0, b"old"), CHANGED, (16, 0, b"link"), DONE, (20, 0, b"new"), DONE)
    assert read(kernel, monkeypatch) == [[b"link"], [b"new"]]
    assert kernel.dumps == 4


def test_one_that_changes_all_the_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(*[CHANGED] * 100)
    monkeypatch.setattr(socket, "socket", kernel)
    with pytest.raises(Unavailable, match="does not answer: the table changes while it is read"):
        interfaces.read_interfaces(soon())
    assert kernel.dumps == netlink.ATTEMPTS


def test_a_dump_that_the_kernel_gives_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = (netlink.NLMSG_DONE, 0, struct.pack("=i", -errno.ENOBUFS))
    with pytest.raises(OSError, match="No buffer space"):
        read(Kernel((16, 0, b"link"), given_up), monkeypatch)


def test_a_dump_without_end_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    kernel = Kernel(*[(16, 0, b"link")] * 1000)
    with pytest.raises(TimeoutError):
        read(kernel, monkeypatch, 30)
    assert len(kernel.messages) > 900


@pytest.mark.parametrize(
    ("driver", "bus", "expected"),
    [
        ("mlx5_core", "0000:41:00.0", "physical"),
        ("bridge", "N/A", "bridge"),
        ("veth", "", "veth"),
        ("tun", "tap", "tun"),
        ("bonding", "", "bond"),
        ("802.1Q VLAN Support", "", "vlan"),
        ("", "", "virtual"),
    ],
)
def test_the_driver_tells_the_kind(driver: str, bus: str, expected: str) -> None:
    assert interfaces.kind(driver, bus) == expected


LAB = """
import json, subprocess, time
from nccl_doctor.probe.facts import network as interfaces
def ip(*words): subprocess.run(["ip", *words], check=True)
ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
ip("link", "add", "br0", "type", "bridge")
ip("tuntap", "add", "t0", "mode", "tap")
for name in ("lo", "v1", "v0", "br0", "t0"): ip("link", "set", name, "up")
ip("-6", "addr", "add", "fd00::b/64", "dev", "br0", "nodad")
ip("-6", "addr", "add", "fd00::a/64", "dev", "v1", "nodad")
ip("addr", "add", "10.1.0.1/24", "dev", "v0")
ip("addr", "add", "10.2.0.1/24", "dev", "v0", "label", "v0:1")
ip("addr", "add", "10.3.0.1/16", "dev", "br0")
print(json.dumps(interfaces.read_interfaces(time.monotonic() + 60)))
"""


@pytest.mark.lab
def test_real_links_have_their_kinds_flags_and_order() -> None:
    dumps = "ip -o -4 addr show; ip -o -6 addr show"
    flags = "-n" if os.getuid() == 0 else "-rn"
    shell = f'"$0" -c "$1" && {dumps}'
    argv = ["unshare", flags, "sh", "-c", shell, sys.executable, LAB]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    first, *dumped = done.stdout.splitlines()
    found = json.loads(first)
    links = {link["name"]: link for link in found["links"]}
    assert {name: link["kind"] for name, link in links.items() if name in ("lo", "v0", "br0", "t0")} == {
        "lo": "loopback",
        "v0": "veth",
        "br0": "bridge",
        "t0": "tun",
    }
    assert {"up", "running", "loopback"} <= set(links["lo"]["flags"])
    assert {"up", "running"} <= set(links["v0"]["flags"])
    assert "up" in links["t0"]["flags"]
    assert "running" not in links["t0"]["flags"]  # nobody has opened it
    assert [link["index"] for link in found["links"]] == sorted(link["index"] for link in found["links"])
    # `ip` prints each family's dump in the kernel's order, which is getifaddrs(3)'s
    expected = [line.split()[3].partition("/")[0] for line in dumped]
    assert [row["address"] for row in found["addresses"]] == expected
    by_address = {row["address"]: row for row in found["addresses"]}
    assert by_address["10.2.0.1"]["interface"] == "v0:1"
    assert by_address["10.3.0.1"]["netmask"] == "255.255.0.0"
    assert by_address["fd00::a"]["netmask"] == "ffff:ffff:ffff:ffff::"
    local = next(row for row in found["addresses"] if row["address"].startswith("fe80:"))
    assert local["scope_id"] == links[local["interface"]]["index"]


COMPARED = """
import json, random, subprocess, sys, time
import netifaces, psutil
from nccl_doctor.probe.facts import network as interfaces
from tests.nccl.libnccl import read_interfaces

draw = random.Random(int(sys.argv[1]))
names = [f"n{number}" for number in range(draw.randint(4, 12))]
numbers = draw.sample(range(200, 900), 2 * len(names))
lines = []
for at, name in enumerate(list(names)):
    how = draw.choice(["veth", "veth", "bridge", "vxlan", "tap", "tun"])
    if how in ("tap", "tun"):
        subprocess.run(["ip", "tuntap", "add", name, "mode", how], check=True)
        continue
    index = f"index {numbers[2 * at]}"
    more = {"vxlan": f"id {at + 1} dstport 4789 remote 10.255.0.9", "veth": f"peer name p{at} index {numbers[2 * at + 1]}"}
    lines.append(f"link add {name} {index} type {how} {more.get(how, '')}")
    if how == "veth":
        names.append(f"p{at}")
lines += [f"link set {name} mtu {draw.choice([1280, 1400, 1450])}" for name in names if draw.random() < 0.4]
lines += [f"link set {name} {draw.choice(['promisc on', 'multicast off', 'arp off', 'allmulticast on'])}" for name in names if draw.random() < 0.4]
lines += [f"link set {name} up" for name in ["lo", *names] if draw.random() < 0.7]
for number in range(draw.choice([5, 40, 600])):
    name, four, six = draw.choice(["lo", *names]), f"10.{number >> 8}.{number & 255}.1", f"fd00::{number + 1:x}"
    lines.append(draw.choice([
        f"addr add {four}/{draw.choice([8, 24, 30, 32])} dev {name}",
        f"addr add {four}/24 dev {name} label {name}:{number}",
        f"addr add {four} peer 172.16.{number >> 8}.{number & 255}/32 dev {name}",
        f"addr add {six}/{draw.choice([10, 64, 127, 128])} dev {name} nodad",
        f"addr add {six} peer fd99::{number + 1:x} dev {name} nodad",
        f"addr add fe80::{number + 1:x}/64 dev {name} nodad",
    ]))
subprocess.run(["ip", "-batch", "-"], input="\\n".join(lines), text=True, check=True)

def of_psutil():
    # As the host would tell it by psutil: for each link its flags, MTU and speed, and all addresses in no order.
    links = {name: (one.flags, one.mtu, one.speed or None) for name, one in psutil.net_if_stats().items()}
    rows = psutil.net_if_addrs().items()
    return links, sorted((name, one.address, one.netmask) for name, some in rows for one in some if one.family in (2, 10))

def of_netifaces():
    return {name: {kind: [one["addr"].partition("%")[0] for one in netifaces.ifaddresses(name).get(kind, [])] for kind in (2, 10)} for name in netifaces.interfaces()}

# A link that came up a moment ago may still get its fe80:: address: both ends of a comparison saw the same.
until = time.monotonic() + 60
while True:
    before = read_interfaces()
    ours, theirs, third = interfaces.read_interfaces(until), of_psutil(), of_netifaces()
    if read_interfaces() == before:
        break
    assert time.monotonic() < until
print(json.dumps([ours, before, theirs, third]))
"""


@pytest.mark.lab
@pytest.mark.parametrize("seed", range(8))
def test_netlink_tells_what_getifaddrs_psutil_and_netifaces_tell(seed: int) -> None:
    argv = ["unshare", "-n" if os.getuid() == 0 else "-rn", sys.executable, "-c", COMPARED, str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ours, getifaddrs, (stats, addresses), third = json.loads(done.stdout)
    assert ours["addresses"] == getifaddrs["addresses"]  # and in this order
    assert [link["name"] for link in ours["links"]] == [link["name"] for link in getifaddrs["links"]]
    assert [link["index"] for link in ours["links"]] == [link["index"] for link in getifaddrs["links"]]
    assert {link["name"]: [",".join(link["flags"]), link["mtu"], link["speed_mbps"]] for link in ours["links"]} == stats
    by_index = {link["index"]: link["name"] for link in ours["links"]}
    rows = ours["addresses"]
    scoped = [f"{row['address']}%{by_index[row['scope_id']]}" if row["scope_id"] else row["address"] for row in rows]
    told = [[row["interface"], text, row["netmask"]] for row, text in zip(rows, scoped, strict=True)]
    assert sorted(told) == addresses
    for name, families in third.items():
        for family, number in (("inet", "2"), ("inet6", "10")):
            of_it = [row["address"] for row in rows if (row["interface"], row["family"]) == (name, family)]
            assert of_it == families[number]
    assert Interfaces.model_validate(ours)


REFUSING = """
import ctypes, json, os, platform, socket, struct, sys, time
server = socket.create_server(("127.0.0.1", 0))
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]  # socket(2)
def op(code, yes, no, value):
    return struct.pack("=HBBI", code, yes, no, value)
# its first argument, of which the lower half comes first, is AF_NETLINK: EAFNOSUPPORT, as systemd's filter has it
program = op(0x20, 0, 0, 0) + op(0x15, 0, 3, number) + op(0x20, 0, 0, 16) + op(0x15, 0, 1, socket.AF_NETLINK)
program += op(6, 0, 0, 0x00050000 | 97) + op(6, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(program)
filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filters) == 0, os.strerror(ctypes.get_errno())
from nccl_doctor.probe import facts
from nccl_doctor.probe.facts.network import list_sockets
from nccl_doctor.probe.facts import network as interfaces
port = server.getsockname()[1]
found = facts.run({"interfaces": lambda: interfaces.read_interfaces(time.monotonic() + 60), "sockets": lambda: list_sockets({port})}, 60)
holders = [row["pid"] for row in found["sockets"] if row["local_port"] == port]
print(json.dumps([found["interfaces"], holders == [os.getpid()], libc.getifaddrs(ctypes.byref(ctypes.c_void_p()))]))
"""


def test_where_netlink_is_refused_nccl_finds_nothing_either_and_sockets_come_from_proc() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSING], capture_output=True, text=True, check=True, cwd=ROOT)
    told, held, getifaddrs = json.loads(done.stdout)
    reason = (
        "netlink, with which NCCL lists the interfaces, too, does not answer: Address family not supported by protocol"
    )
    assert (told["$unknown"], told["traceback"]) == (reason, None)
    assert held
    assert getifaddrs == -1


# --- routes -------------------------------------------------------------------------------------------------------

INET = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
*\t000010AC\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
*\t8000F40A\t00000000\t0001\t0\t0\t0\tC0FFFFFF\t0\t0\t0
"""
INET6 = """\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo
ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000003 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
"""


def test_ipv4_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    # the sample is from a little-endian kernel
    monkeypatch.setattr(routes, "_inet", lambda text: socket.inet_ntoa(bytes.fromhex(text)[::-1]))
    assert [(r["destination"], r["gateway"], r["metric"]) for r in routes.parse_inet(INET)] == [
        ("0.0.0.0/0", "10.0.0.1", 100),
        ("10.0.0.0/24", None, 100),
    ]


def test_ipv6_routes_without_the_hosts_own() -> None:
    assert [(r["destination"], r["gateway"], r["metric"]) for r in routes.parse_inet6(INET6)] == [
        ("fd00::/64", None, 256),
        ("::/0", "fd00::1", 1024),
    ]


# --- sockets ------------------------------------------------------------------------------------------------------


def test_listeners_are_listed_and_of_the_others_those_on_the_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            client_port = client.getsockname()[1]
            plain = {(row["local_port"], row["state"]): row for row in list_sockets(set())}
            watched = {(row["local_port"], row["state"]): row for row in list_sockets({client_port})}
    assert plain[port, "LISTEN"]["pid"] == os.getpid()
    assert plain[port, "LISTEN"]["remote_address"] is None
    assert (client_port, "ESTABLISHED") not in plain
    assert watched[client_port, "ESTABLISHED"]["remote_port"] == port


def test_proc_lists_what_the_kernel_tells_by_netlink() -> None:
    with ExitStack() as keep:
        ports = set()
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("::", socket.AF_INET6)):
            server = keep.enter_context(socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::"))
            port = server.getsockname()[1]
            client = keep.enter_context(socket.create_connection(("127.0.0.1" if host == "::" else host, port)))
            keep.enter_context(server.accept()[0])
            ports |= {port, client.getsockname()[1]}
        told = {one._replace(expires_s=None) for one in netlink.find_sockets(ports)}
        listed = {one.socket._replace(expires_s=None) for one in netlink.read_table() if one.socket.local_port in ports}
        by_psutil = {one for one in psutil.net_connections(kind="tcp") if one.laddr and one.laddr.port in ports}
        rows = [row for row in list_sockets(ports) if row["local_port"] in ports]
    assert told == listed
    assert len(told) == 9
    assert {(row["local_address"], row["local_port"], row["remote_address"], row["remote_port"], row["state"], row["pid"]) for row in rows} == {
        (*one.laddr, *(one.raddr or (None, None)), one.status, one.pid) for one in by_psutil
    }  # fmt: skip


def test_without_ipv6_there_is_one_table_and_without_proc_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tcp").write_text("".join(Path("/proc/net/tcp").read_text().splitlines(keepends=True)[:1]))
    assert netlink.read_table(str(tmp_path)) == []
    (tmp_path / "tcp").unlink()

    def refuse(*_args: Any, **_options: Any) -> Any:
        return netlink.read_table(str(tmp_path))

    monkeypatch.setattr(netlink, "find_sockets", refuse)
    with pytest.raises(Unavailable, match="neither sock_diag nor /proc/net/tcp can be read: No such file"):
        list_sockets({29500})


# --- names --------------------------------------------------------------------------------------------------------


def test_names_literals_and_the_hosts_own_are_answered() -> None:
    wanted = ("127.0.0.1", "::1", "localhost", "no-such-host.invalid", "127.0.0.2")
    told = Names.model_validate(network.resolve_names(dict.fromkeys(wanted), soon()))
    assert {"localhost", "no-such-host.invalid", socket.gethostname()} <= told.own.keys()
    assert told.source in ("127.0.0.1", "::1")
    assert told.get("127.0.0.1") == Resolution(addresses=("127.0.0.1",), source="127.0.0.1")
    assert told.get("::1") == Resolution(addresses=("::1",), source="::1")
    assert "127.0.0.1" in told.own["localhost"].addresses
    assert told.own["no-such-host.invalid"].addresses == ()
    assert told.own["no-such-host.invalid"].error


def test_only_what_deviates_from_what_others_made_of_it_is_told() -> None:
    lost = network.look_up("no-such-host.invalid")
    wanted: dict[str, list[Any] | None] = {
        "localhost": [["10.0.0.9"], None],
        "127.0.0.1": None,
        "127.0.0.2": None,
        "127.0.0.3": None,
        "no-such-host.invalid": [[], lost["error"]],
        socket.gethostname(): [network.look_up(socket.gethostname())["addresses"], None],
    }
    own = network.resolve_names(wanted, soon())["own"]
    assert own["localhost"]["addresses"] == network.look_up("localhost")["addresses"]
    assert not own.keys() & {"127.0.0.1", "no-such-host.invalid"}


def test_an_address_without_route_tells_the_errno() -> None:
    # class E is refused by every Linux that has no route of its own for it
    assert network.source_to(socket.AF_INET, ("255.255.255.255", 9)) == (None, "EACCES")


def test_a_name_that_is_none_has_an_error() -> None:
    assert network.look_up("a" * 70 + ".example")["error"]


@given(st.text(max_size=20))
def test_any_text_is_a_literal_or_not(text: str) -> None:
    assert network.is_literal(text) in (True, False)


def test_what_hangs_leaves_the_others_their_answers() -> None:
    release = threading.Event()

    def look(name: str) -> str:
        if name == "slow":
            release.wait(LONG_S)
        return name.upper()

    try:
        found = side_by_side(look, ["slow", *(f"node{n}" for n in range(40))], time.monotonic() + 0.3 * crowd())
    finally:
        release.set()
    assert "slow" not in found
    assert len(found) == 40


def test_a_look_up_that_never_ends_is_told_in_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(
        network,
        "look_up",
        lambda name: (
            release.wait(LONG_S)
            if name == "slow"
            else {"addresses": ["::1"], "error": None, "source": None, "source_error": None}
        ),
    )
    try:
        found = network.resolve_names({"slow": None, "quick": None}, time.monotonic() + 0.3 * crowd())["own"]
    finally:
        release.set()
    assert (found["slow"]["addresses"], found["slow"]["error"][:12]) == ([], "no answer in")
    assert found["quick"]["addresses"] == ["::1"]
