from __future__ import annotations

import pytest

from nccl_doctor.model.documents import Exports, InterfaceAnswer, InterfaceAnswers
from nccl_doctor.model.report import NcclInterface, RdmaAnswer
from nccl_doctor.report.render import RenderOptions, render


def line(host: str, name: str | None, address: str = "", reason: str = "first running interface") -> InterfaceAnswer:
    chosen = NcclInterface(name=name, address=address, nccl_version="2.27.7", source="libnccl") if name else None
    return InterfaceAnswer(name=host, nccl_interface=chosen, reason=reason)


def shown(answers: list[InterfaceAnswer], *exports: Exports, width: int = 80, color: bool = False) -> str:
    document = InterfaceAnswers(hosts=tuple(answers), exports=exports)
    return render("ifname", "human", document, RenderOptions(color, width))


def test_hosts_alike_are_folded_and_commands_stand_alone() -> None:
    lines = [
        line("node1", "eno1", "10.0.0.1"),
        line("node2", "br-9f3a", "172.19.0.1", "no other host can reach it"),
        line("node3", "eno1", "10.0.0.3"),
    ]
    exports = ("export NCCL_SOCKET_IFNAME='=eno1'", "export GLOO_SOCKET_IFNAME=eno1")
    screen = shown(lines, Exports(hosts=None, lines=exports), width=100)
    assert screen == (
        "host       NCCL uses            why\n"
        "node[1,3]  eno1  10.0.0.x       first running interface (according to libnccl 2.27.7)\n"
        "node2      br-9f3a  172.19.0.1  no other host can reach it (according to libnccl 2.27.7)\n"
        "\n"
        "Set on every host, or under env in the hosts file:\n"
        "\n"
        "export NCCL_SOCKET_IFNAME='=eno1'\n"
        "export GLOO_SOCKET_IFNAME=eno1\n"
    )


@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "(according to our model of NCCL)"), ("2.27.7", "(according to our model of NCCL 2.27.7)")],
)
def test_a_model_s_answer_names_the_version_that_is_known(version: str | None, words: str) -> None:
    chosen = NcclInterface(name="eno1", address="10.0.0.1", nccl_version=version, source="model")
    assert words in shown([InterfaceAnswer(name="a", nccl_interface=chosen, reason="first")])


def test_colour_marks_what_to_paste() -> None:
    screen = shown([line("a", "eth0", "10.0.0.1")], Exports(hosts=None, lines=("export A=1",)), color=True)
    assert screen.count("\x1b[1mexport A=1\x1b[0m\n") == 1


def test_a_setting_for_some_hosts_names_them() -> None:
    screen = shown(
        [line("a", "eth0", "10.0.0.1")], Exports(hosts=("a", "b"), lines=("export NCCL_SOCKET_IFNAME='=eth0'",))
    )
    assert "Set on a,b, or under env in the hosts file:" in screen


def test_none_and_not_known_are_told_apart() -> None:
    lines = [
        line("a", None, reason="matches no interface"),
        InterfaceAnswer(name="b", nccl_interface=None, reason="netlink is refused", known=False),
    ]
    screen = shown(lines)
    assert "a     nothing    matches no interface" in screen
    assert "b     not known  netlink is refused" in screen


def test_addresses_share_what_they_share() -> None:
    for addresses, expected in [
        (("10.0.0.1", "10.0.1.7"), "eth0  10.0.x.x"),
        (("10.0.0.1", "172.16.0.1"), "eth0  several"),
        (("2001:db8::1", "2001:db8::2"), "eth0  2001:db8::/64"),
        (("fe80::1%eth0", "10.0.0.1"), "eth0  several"),
    ]:
        lines = [line(f"n{number}", "eth0", address) for number, address in enumerate(addresses)]
        assert expected in shown(lines)


def test_nothing_hostile_reaches_the_terminal() -> None:
    screen = shown([line("a", "eth\x1b[31m0", "10.0.0.1")], Exports(hosts=None, lines=("export A='\x1b]0;x'",)))
    assert "\x1b" not in screen
    assert "can't be shown" in screen


def test_asked_by_address_the_interfaces_that_have_it_are_shown() -> None:
    rows = [
        line("a", "eth0", "10.0.0.1", "has 10.9.0.1").model_copy(update={"has": ("eno2", "10.9.0.1")}),
        line("b", "eth0", "10.0.0.2", "no interface has 10.9.0.1"),
    ]
    document = InterfaceAnswers(asked="10.9.0.1", hosts=tuple(rows), exports=())
    assert render("ifname", "human", document, RenderOptions()).splitlines() == [
        "host  interface       why",
        "a     eno2  10.9.0.1  has 10.9.0.1",
        "b     none            no interface has 10.9.0.1",
    ]


def port(device: str, address: str | None, *, place: int = 0, trouble: str | None = None) -> RdmaAnswer:
    netdev, net = (f"net-{device}", f"{address.rpartition('.')[0]}.0/24") if address else (None, None)
    layer = "Ethernet" if address else "InfiniBand"
    more = {"netdev": netdev, "network": net, "gid": address or "fe80::1", "trouble": trouble, "place": place}
    answer = {"device": device, "port": 1, "link_layer": layer, "rate_gbps": 200.0, "gid_index": 3, "why": ""}
    return RdmaAnswer.model_validate({**answer, **more})


def test_rdma_devices_stand_by_their_place_hosts_alike_folded() -> None:
    hosts = [line(f"node{n}", "eno1", f"10.0.0.{n}") for n in (1, 2, 3)]
    rdma = [
        (port("a", f"10.1.0.{n}"), port("b", None, place=1, trouble="no way to node3's" if n < 3 else None))
        for n in (1, 2, 3)
    ]
    screen = shown([one.model_copy(update={"rdma": rows}) for one, rows in zip(hosts, rdma, strict=True)], width=100)
    assert screen.partition("\n\n")[2].splitlines() == [
        "RDMA, by place  device      GID          network",
        "node[1-3] [0]   a on net-a  3  10.1.0.x  10.1.0.0/24",
        "node[1-2] [1]   b           3  fe80::1   InfiniBand  no way to node3's",
        "node3 [1]       b           3  fe80::1   InfiniBand",
    ]
