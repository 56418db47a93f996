"""NCCL's rules as they were seen at work: a host with two NICs, two idle ones and docker0, and variants of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl.interfaces import (
    INVALID,
    Chosen,
    ChosenInterfaces,
    NcclFailure,
    choose,
    choose_all,
    is_read,
    parse_spec,
)
from nccl_doctor.nccl.versions import CLASSES, behaviour, parse_version
from nccl_doctor.snapshot.network import InterfaceAddress, Interfaces, Link, Resolution

RUNNING, IDLE = ("up", "running"), ("up",)


def link(name: str, index: int, flags: tuple[str, ...] = RUNNING) -> Link:
    return Link(name=name, index=index, flags=flags, mtu=1500, speed_mbps=None, kind="virtual")


def inet(interface: str, address: str, netmask: str = "255.255.255.0") -> InterfaceAddress:
    return InterfaceAddress(interface=interface, family="inet", address=address, netmask=netmask)


def inet6(interface: str, address: str, scope: int = 0) -> InterfaceAddress:
    mask = "ffff:ffff:ffff:ffff::"
    return InterfaceAddress(interface=interface, family="inet6", address=address, netmask=mask, scope_id=scope)


def host(*rows: tuple[str, tuple[str, ...], tuple[InterfaceAddress, ...]]) -> Interfaces:
    every = [("lo", ("up", "loopback", "running"), (inet("lo", "127.0.0.1", "255.0.0.0"), inet6("lo", "::1"))), *rows]
    addresses = [address for _, _, some in every for address in some]
    return Interfaces(
        links=tuple(link(name, index, flags) for index, (name, flags, _) in enumerate(every, start=1)),
        addresses=tuple(sorted(addresses, key=lambda address: address.family)),  # all IPv4, then all IPv6
    )


COMMON = host(
    ("eth0", RUNNING, (inet("eth0", "10.0.0.5"),)),
    ("eth1", RUNNING, (inet("eth1", "10.0.1.5"),)),
    ("eth2", ("broadcast",), (inet("eth2", "10.0.2.5"),)),
    ("eth3", IDLE, (inet("eth3", "10.0.3.5"),)),
    ("docker0", RUNNING, (inet("docker0", "172.17.0.1", "255.255.0.0"),)),
)
VIRTUAL = host(
    ("virbr0", RUNNING, (inet("virbr0", "192.168.122.1"),)),
    ("docker0", RUNNING, (inet("docker0", "172.17.0.1"),)),
    ("br-12ab", RUNNING, (inet("br-12ab", "172.18.0.1"),)),
    ("eth0", RUNNING, (inet("eth0", "10.0.0.5"),)),
)
DUAL = host(
    ("eth0", RUNNING, (inet6("eth0", "2001:db8::5"), inet6("eth0", "fe80::1", 2))),
    ("eth1", RUNNING, (inet("eth1", "10.0.1.5"), inet("eth1", "10.0.9.9"))),
    ("eth2", RUNNING, (inet("eth2", "10.0.2.5"), inet6("eth2", "2001:db8:2::5"))),
)
FAILS = "Bootstrap : no socket interface found"


def picked(interfaces: Interfaces, env: dict[str, str], version: str = "2.28.9") -> str:
    choice = choose(interfaces, env, parse_version(version))
    assert isinstance(choice, ChosenInterfaces)
    return choice.bootstrap.name if isinstance(choice.bootstrap, Chosen) else choice.bootstrap.words


@pytest.mark.parametrize(
    ("ifname", "old", "new"),
    [
        (None, "eth0", "eth0"),
        ("lo", "lo", "lo"),
        ("eth1,eth0", "eth0", "eth0"),
        ("=eth", FAILS, FAILS),
        ("bogus0", FAILS, FAILS),
        ("=^eth0", FAILS, FAILS),
        ("eth9, eth1", FAILS, FAILS),
        ("^=", FAILS, FAILS),
        ("^eth,docker,lo", FAILS, FAILS),
        ("^docker", "lo", "lo"),
        ("^=eth0", "lo", "lo"),
        (",,", "lo", "lo"),
        ("^lo,docker0", "eth0", "eth0"),
        ("e", "eth0", "eth0"),
        ("^", "eth0", "eth0"),
        (",", "eth0", "eth0"),
        ("eth2", "eth2", FAILS),
        ("eth3", "eth3", FAILS),
        ("eth1:1", "eth1", "eth1"),
    ],
)
def test_the_variable_decides(ifname: str | None, old: str, new: str) -> None:
    env = {} if ifname is None else {"NCCL_SOCKET_IFNAME": ifname}
    assert (picked(COMMON, env, "2.27.7"), picked(COMMON, env, "2.28.9")) == (old, new)


def test_result_codes_and_words_by_version() -> None:
    def failure(version: str) -> tuple[str, int | None]:
        choice = choose(COMMON, {"NCCL_SOCKET_IFNAME": "bogus0"}, parse_version(version))
        assert isinstance(choice, ChosenInterfaces)
        assert isinstance(choice.bootstrap, NcclFailure)
        return choice.bootstrap.words, choice.bootstrap.result

    assert failure("2.4.2") == ("NET/Socket : no interface found", 3)
    assert failure("2.23.4") == (FAILS, 3)
    assert failure("2.24.3") == (FAILS, 5)


def test_docker_compose_comes_before_the_nic_in_every_version() -> None:
    assert picked(VIRTUAL, {}, "2.27.7") == "virbr0"
    assert picked(VIRTUAL, {}, "2.28.9") == "br-12ab"


def test_ib_comes_first_unless_it_has_no_carrier() -> None:
    def interfaces(flags: tuple[str, ...]) -> Interfaces:
        return host(("eth0", RUNNING, (inet("eth0", "10.0.0.5"),)), ("ibp1s0", flags, (inet("ibp1s0", "192.168.8.5"),)))

    assert picked(interfaces(RUNNING), {}) == "ibp1s0"
    assert picked(interfaces(IDLE), {}) == "eth0"
    assert picked(interfaces(IDLE), {}, "2.27.7") == "ibp1s0"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "10.0.1.5"),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "2001:db8::5"),
        ({"NCCL_SOCKET_IFNAME": "=eth0,eth2"}, "10.0.2.5"),
        ({"NCCL_SOCKET_IFNAME": "=eth2", "NCCL_SOCKET_FAMILY": "AF_INET6"}, "2001:db8:2::5"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "2001:db8::5"),
        ({"NCCL_SOCKET_FAMILY": "ipv6"}, "10.0.1.5"),
        ({"NCCL_COMM_ID": "[2001:db8::77]:29600"}, "2001:db8::5"),
        ({"NCCL_COMM_ID": "[fe80::9%eth0]:29600"}, "fe80::1"),
        ({"NCCL_COMM_ID": "10.0.9.1:29600"}, "10.0.9.9"),
        ({"NCCL_COMM_ID": "10.0.2.1:29600", "NCCL_SOCKET_IFNAME": "=eth1"}, "10.0.2.5"),
        ({"NCCL_COMM_ID": "far:29600"}, "10.0.2.5"),
    ],
)
def test_families_and_addresses(env: dict[str, str], expected: str) -> None:
    choice = choose(DUAL, env, (2, 28, 9), {"far": Resolution(addresses=("10.0.2.200",))})
    assert isinstance(choice, ChosenInterfaces)
    assert isinstance(choice.bootstrap, Chosen)
    assert choice.bootstrap.address == expected


def test_comm_id_that_can_not_be_used() -> None:
    def words(value: str) -> str:
        return picked(DUAL, {"NCCL_COMM_ID": value})

    assert words(":29600") == INVALID
    assert words("") == INVALID
    assert words("[fe80::1") == INVALID
    assert words("10.77.0.1:29600") == "NET/Socket : No usable listening interface found"
    unresolved = choose(DUAL, {"NCCL_COMM_ID": "nobody:1"}, (2, 28, 9))
    assert isinstance(unresolved, Unknown)


def test_net_socket_uses_all_that_pass_and_at_most_sixteen() -> None:
    many = host(*((f"eth{n}", RUNNING, (inet(f"eth{n}", f"10.0.{n}.5"),)) for n in range(20)))
    choice = choose(many, {}, (2, 27, 7))
    assert isinstance(choice, ChosenInterfaces)
    assert [use.name for use in choice.net_socket] == [f"eth{n}" for n in range(16)]


def test_an_alias_is_a_name_of_its_own_with_its_links_flags() -> None:
    interfaces = host(("eth0", IDLE, (inet("eth0", "10.0.0.5"), inet("eth0:1", "10.9.0.5"))))
    choice = choose(interfaces, {"NCCL_SOCKET_IFNAME": "eth0"}, (2, 27, 7))
    assert isinstance(choice, ChosenInterfaces)
    assert [use.name for use in choice.net_socket] == ["eth0", "eth0:1"]
    assert picked(interfaces, {"NCCL_SOCKET_IFNAME": "eth0"}, "2.28.9") == FAILS


def test_an_unknown_version_is_answered_where_all_agree() -> None:
    agreed = choose_all(COMMON, {"NCCL_SOCKET_IFNAME": "=eth1"})
    assert isinstance(agreed, ChosenInterfaces)
    assert isinstance(agreed.bootstrap, Chosen)
    assert agreed.bootstrap.name == "eth1"
    parted = choose_all(VIRTUAL, {})
    assert isinstance(parted, Unknown)
    assert "before 2.28.3 it uses virbr0" in parted.reason
    assert isinstance(choose_all(VIRTUAL, {}, oldest=(2, 28, 9)), ChosenInterfaces)


def test_where_versions_differ_by_their_config_file_it_is_named() -> None:
    named: dict[str, str] = {"NCCL_SOCKET_IFNAME": "=eth1"}
    parted = choose_all(COMMON, named, before_conf_file={})
    assert isinstance(parted, Unknown)
    assert "NCCL_CONF_FILE decides, which is read from then on only: before 2.23.4 it uses" in parted.reason
    assert isinstance(choose_all(COMMON, named, before_conf_file={}, oldest=(2, 27, 3)), ChosenInterfaces)
    assert isinstance(choose_all(COMMON, {**named, "NCCL_DEBUG": "WARN"}, before_conf_file=named), ChosenInterfaces)


names = st.sampled_from(["lo", "eth0", "eth1", "ib0", "docker0", "virbr0", "br-1", "eth0:1", "e", "日本"])
ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str)
drawn_addresses = st.lists(
    st.one_of(
        st.builds(inet, names, ipv4, st.sampled_from(["255.255.255.0", "255.255.255.255", "0.0.0.0"])),
        st.builds(inet6, names, ipv6, st.integers(0, 3)),
    ),
    max_size=20,
)
drawn_links = st.lists(
    st.builds(
        link, names.filter(lambda name: ":" not in name), st.integers(1, 9), st.sampled_from([RUNNING, IDLE, ()])
    ),
    max_size=8,
)
words = st.text(alphabet="^=,: ethiblodckrvn01", max_size=12) | st.text(max_size=5)
drawn_env = st.fixed_dictionaries(
    {},
    optional={
        "NCCL_SOCKET_IFNAME": words,
        "NCCL_SOCKET_FAMILY": st.sampled_from(["AF_INET", "AF_INET6", "x", ""]),
        "NCCL_COMM_ID": st.one_of(words, ipv4, ipv6.map("[{}]:1".format), st.just("[fe80::1%eth0]:2")),
    },
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(drawn_links, drawn_addresses, drawn_env, st.sampled_from([since for since, _ in CLASSES]))
def test_never_raises_and_never_returns_what_the_settings_exclude(
    links: list[Link], addresses: list[InterfaceAddress], env: dict[str, str], version: tuple[int, int, int]
) -> None:
    interfaces = Interfaces(links=tuple(links), addresses=tuple(addresses))
    choice = choose(interfaces, env, version)
    choose_all(interfaces, env)
    if isinstance(choice, Unknown):
        assert "NCCL_COMM_ID" in env
        return
    idle = {link.name for link in links if "running" not in link.flags}
    ifname, family = env.get("NCCL_SOCKET_IFNAME"), env.get("NCCL_SOCKET_FAMILY", "")
    used = [*choice.net_socket]
    if isinstance(choice.bootstrap, Chosen) and "NCCL_COMM_ID" not in env:
        used.append(choice.bootstrap)
    for use in used:
        assert (use.name, use.address) in {(address.interface, address.address) for address in addresses}
        if is_read(ifname):
            assert ifname is not None
            assert parse_spec(ifname, both_signs=behaviour(version).both_signs).accepts(use.name)
        if "NCCL_COMM_ID" not in env:
            assert use.address != "::1"
            assert (":" in use.address) == (family == "AF_INET6") or family not in ("AF_INET", "AF_INET6")
            assert version < (2, 28, 3) or use.name.partition(":")[0] not in idle
