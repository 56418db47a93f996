from __future__ import annotations

import pytest

from nccl_doctor.nccl.gloo import gloo_devices
from nccl_doctor.nccl.interfaces import NcclFailure
from nccl_doctor.snapshot.network import InterfaceAddress, Interfaces, Link, Resolution


def address(interface: str, text: str) -> InterfaceAddress:
    return InterfaceAddress(interface=interface, family="inet", address=text, netmask="255.255.255.0")


INTERFACES = Interfaces(
    links=(), addresses=(address("lo", "127.0.0.1"), address("eth0", "10.0.0.5"), address("eth1", "10.0.1.5"))
)


@pytest.mark.parametrize("value", ["=eth0", "eth", "^lo", "ETH0", "eth0,eth9", "eth0, eth1"])
def test_gloo_knows_whole_names_only(value: str) -> None:
    outcome = gloo_devices(INTERFACES, {"GLOO_SOCKET_IFNAME": value}, None)
    assert isinstance(outcome, NcclFailure)
    assert outcome.words.startswith("Unable to find address for: ")


def test_a_member_of_a_bridge_is_there_and_has_no_address() -> None:
    member = Link(name="eth2", index=4, flags=("up", "running"), mtu=1500, speed_mbps=None, kind="physical")
    outcome = gloo_devices(
        INTERFACES.model_copy(update={"links": (member,)}), {"GLOO_SOCKET_IFNAME": "eth0,eth2"}, None
    )
    assert isinstance(outcome, NcclFailure)
    assert outcome.reason == "'eth2' has no address, as a member of a bond or a bridge has none"


def test_gloo_takes_every_device_of_the_list() -> None:
    outcome = gloo_devices(INTERFACES, {"GLOO_SOCKET_IFNAME": "eth1,eth0"}, None)
    assert isinstance(outcome, tuple)
    assert [device.address for device in outcome] == ["10.0.1.5", "10.0.0.5"]


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [
        (("10.0.0.5",), "10.0.0.5"),
        (("127.0.1.1",), "127.0.1.1"),
        (("192.0.2.9", "10.0.1.5"), "10.0.1.5"),
        (("192.0.2.9",), "127.0.0.1"),
        ((), "127.0.0.1"),
    ],
)
def test_without_the_variable_the_hosts_own_name_decides(resolved: tuple[str, ...], expected: str) -> None:
    outcome = gloo_devices(INTERFACES, {}, Resolution(addresses=resolved))
    assert isinstance(outcome, tuple)
    assert [device.address for device in outcome] == [expected]
    assert gloo_devices(INTERFACES, {}, None) is None
