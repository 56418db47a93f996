from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe.facts import interfaces, names, routes, sockets
from nccl_doctor.probe.side_by_side import side_by_side
from nccl_doctor.snapshot import Names, Resolution
from tests.patience import LONG_S, crowd

# --- interfaces ---------------------------------------------------------------------------------------------------


def address(text: str, netmask: str | None = None) -> Any:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return SimpleNamespace(family=family, address=text, netmask=netmask)


def test_ipv4_keeps_its_order_and_ipv6_follows_by_the_kernels_order_of_links() -> None:
    found = {
        "eth1": [address("10.0.1.1"), address("fe80::2%eth1")],
        "lo": [address("::1")],
        "eth0": [address("fd00::5")],
        "eth1:1": [address("10.0.1.9")],
    }
    indexes = {"lo": 1, "eth0": 7, "eth1": 2}
    rows = interfaces.addresses(found, indexes)
    assert [(row["interface"], row["address"], row["scope_id"]) for row in rows] == [
        ("eth1", "10.0.1.1", 0),
        ("eth1:1", "10.0.1.9", 0),
        ("lo", "::1", 0),
        ("eth0", "fd00::5", 0),
        ("eth1", "fe80::2", 2),
    ]


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
import json, subprocess
from nccl_doctor.probe.facts import interfaces
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
print(json.dumps(interfaces.collect()))
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


# --- routes -------------------------------------------------------------------------------------------------------

INET = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
*\t000010AC\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
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
            plain = {(row["local_port"], row["state"]): row for row in sockets.collect(set())}
            watched = {(row["local_port"], row["state"]): row for row in sockets.collect({client_port})}
    assert plain[port, "LISTEN"]["pid"] == os.getpid()
    assert plain[port, "LISTEN"]["remote_address"] is None
    assert (client_port, "ESTABLISHED") not in plain
    assert watched[client_port, "ESTABLISHED"]["remote_port"] == port


# --- names --------------------------------------------------------------------------------------------------------


def soon() -> float:
    return time.monotonic() + LONG_S


def test_names_literals_and_the_hosts_own_are_answered() -> None:
    wanted = ("127.0.0.1", "::1", "localhost", "no-such-host.invalid", "127.0.0.2")
    told = Names.model_validate(names.collect(dict.fromkeys(wanted), soon()))
    assert {"localhost", "no-such-host.invalid", socket.gethostname()} <= told.own.keys()
    assert told.source in ("127.0.0.1", "::1")
    assert told.get("127.0.0.1") == Resolution(addresses=("127.0.0.1",), source="127.0.0.1")
    assert told.get("::1") == Resolution(addresses=("::1",), source="::1")
    assert "127.0.0.1" in told.own["localhost"].addresses
    assert told.own["no-such-host.invalid"].addresses == ()
    assert told.own["no-such-host.invalid"].error


def test_only_what_deviates_from_what_others_made_of_it_is_told() -> None:
    lost = names.look_up("no-such-host.invalid")
    wanted: dict[str, list[Any] | None] = {
        "localhost": [["10.0.0.9"], None],
        "127.0.0.1": None,
        "127.0.0.2": None,
        "127.0.0.3": None,
        "no-such-host.invalid": [[], lost["error"]],
        socket.gethostname(): [names.look_up(socket.gethostname())["addresses"], None],
    }
    own = names.collect(wanted, soon())["own"]
    assert own["localhost"]["addresses"] == names.look_up("localhost")["addresses"]
    assert not own.keys() & {"127.0.0.1", "no-such-host.invalid"}


def test_an_address_without_route_tells_the_errno() -> None:
    # class E is refused by every Linux that has no route of its own for it
    assert names.source_to(socket.AF_INET, ("255.255.255.255", 9)) == (None, "EACCES")


def test_a_name_that_is_none_has_an_error() -> None:
    assert names.look_up("a" * 70 + ".example")["error"]


@given(st.text(max_size=20))
def test_any_text_is_a_literal_or_not(text: str) -> None:
    assert names.is_literal(text) in (True, False)


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
        names,
        "look_up",
        lambda name: (
            release.wait(LONG_S)
            if name == "slow"
            else {"addresses": ["::1"], "error": None, "source": None, "source_error": None}
        ),
    )
    try:
        found = names.collect({"slow": None, "quick": None}, time.monotonic() + 0.3 * crowd())["own"]
    finally:
        release.set()
    assert (found["slow"]["addresses"], found["slow"]["error"][:12]) == ([], "no answer in")
    assert found["quick"]["addresses"] == ["::1"]
