"""Whom RDMA devices meet on another host: the worked examples, and random layouts without contradiction."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.nccl.rdma import ip_of, is_usable, roce_version
from nccl_doctor.nccl.rdma_pairs import ClusterRdma, PairCause, RdmaSide, can_talk, joined
from nccl_doctor.nccl.reachability import Reachable
from nccl_doctor.nccl.variables import RAILS
from nccl_doctor.snapshot.system import RdmaDevice
from tests.nccl.rdma_hosts import NEW, infiniband, roce, side, usual

AWARE = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}


def cluster(*sides: RdmaSide) -> ClusterRdma:
    return ClusterRdma({one.host: one for one in sides}, None)


def met(*sides: RdmaSide) -> list[tuple[str, str, str, PairCause | None]]:
    """For each pair both devices, and what comes of it."""
    pairs = cluster(*sides).pairs
    return [(pair.here.label, pair.there.label, pair.talk.answer.value, pair.talk.cause) for pair in pairs]


def rails(host: int, nets: Sequence[int], **more: object) -> list[RdmaDevice]:
    return [usual(f"mlx5_{n}", f"10.{net}.0.{host}", netdev=f"p{n}", **more) for n, net in enumerate(nets)]


def test_1_one_infiniband_device_each() -> None:
    assert met(side("A", [infiniband("mlx5_0")]), side("B", [infiniband("mlx5_0")])) == [
        ("mlx5_0", "mlx5_0", "yes", None)
    ]


def test_2_a_name_takes_all_that_begin_so_and_a_whole_one_itself() -> None:
    def joined_by(hca: str) -> list[str]:
        twelve = [infiniband(f"mlx5_{n}") for n in range(12)]
        return [here for here, _, _, _ in met(*(side(n, twelve, variables={"NCCL_IB_HCA": hca}) for n in "AB"))]

    assert joined_by("mlx5_1") == ["mlx5_1", "mlx5_10", "mlx5_11"]
    assert joined_by("=mlx5_1") == ["mlx5_1"]


def test_3_leaving_out_a_port_that_is_not_there_leaves_out_nothing() -> None:
    hosts = [
        side(n, [infiniband("mlx5_0"), infiniband("mlx5_1")], variables={"NCCL_IB_HCA": "^mlx5_0:2"}) for n in "AB"
    ]
    assert [(here, there) for here, there, _, _ in met(*hosts)] == [("mlx5_0", "mlx5_0"), ("mlx5_1", "mlx5_1")]


def test_5_a_list_orders_nothing_the_kernel_and_the_pci_bus_do() -> None:
    def listed(version: tuple[int, int, int]) -> list[str]:
        devices = [
            usual("mlx5_0", "10.0.0.1", verbs=0, pci="0000:82:00.0"),
            usual("mlx5_1", "10.0.1.1", verbs=1, pci="0000:01:00.0"),
        ]
        own = side("A", devices, version=version, variables={"NCCL_IB_HCA": "mlx5_1,mlx5_0"})
        return [entry.label for entry in own.rdma.entries]

    assert [listed((2, 27, 7)), listed((2, 29, 7))] == [["mlx5_0", "mlx5_1"], ["mlx5_1", "mlx5_0"]]


def test_4_none_that_fits_is_joined_to_nobody() -> None:
    assert (
        met(side("A", [infiniband("mlx5_0")], variables={"NCCL_IB_HCA": "mlx5_9"}), side("B", [infiniband("mlx5_0")]))
        == []
    )


def test_6_crossed_cables_do_not_reach_each_other_and_the_order_of_the_list_is_no_cure() -> None:
    for variables in ({}, {"NCCL_IB_HCA": "=mlx5_1,mlx5_0"}):
        sides = side("A", rails(1, [1, 2]), variables=variables), side("B", rails(2, [2, 1]), variables=variables)
        assert met(*sides) == [
            ("mlx5_0", "mlx5_0", "no", PairCause.NETWORK),
            ("mlx5_1", "mlx5_1", "no", PairCause.NETWORK),
        ]


def test_6_routing_by_subnets_is_a_cure_since_2_30_7_where_both_have_it() -> None:
    def both(version: tuple[int, int, int], b: dict[str, str] = AWARE) -> list[str]:
        a = side("A", rails(1, [1, 2]), version=version, variables=AWARE)
        return [answer for _, _, answer, _ in met(a, side("B", rails(2, [2, 1]), version=version, variables=b))]

    assert both(RAILS) == ["yes", "yes"]
    assert both(RAILS, {}) == ["no", "no"]
    assert both((2, 30, 4)) == ["no", "no"]


def test_7_routed_networks_work() -> None:
    a = side("A", rails(1, [1, 2]), routes=[("10.2.0.0/24", "p0"), ("10.1.0.0/24", "p1")])
    b = side("B", rails(2, [2, 1]), routes=[("10.1.0.0/24", "p0"), ("10.2.0.0/24", "p1")])
    assert [answer for _, _, answer, _ in met(a, b)] == ["yes", "yes"]
    other = side("B", rails(2, [2, 1]), routes=[("10.1.0.0/24", "p1"), ("10.2.0.0/24", "p0")])
    assert [answer for _, _, answer, _ in met(a, other)] == ["no", "no"], "the route has to be of the very interface"


def test_a_default_route_alone_leaves_it_open() -> None:
    a = side("A", rails(1, [1]), routes=[("0.0.0.0/0", "p0")])
    b = side("B", rails(2, [2]), routes=[("0.0.0.0/0", "p0")])
    assert met(a, b) == [("mlx5_0", "mlx5_0", "unsure", None)]


def test_8_a_port_that_is_down_shifts_those_behind_it() -> None:
    devices = rails(2, range(8))
    devices[3] = roce("mlx5_3", netdev="p3", state="DOWN")
    found = met(side("A", rails(1, range(8))), side("B", devices))
    assert [(here, there, answer) for here, there, answer, _ in found[:4]] == [
        ("mlx5_0", "mlx5_0", "yes"),
        ("mlx5_1", "mlx5_1", "yes"),
        ("mlx5_2", "mlx5_2", "yes"),
        ("mlx5_3", "mlx5_4", "no"),
    ]
    assert len(found) == 7


def test_8_the_same_works_where_rails_are_routed() -> None:
    devices = rails(2, range(8))
    devices[3] = roce("mlx5_3", netdev="p3", state="DOWN")
    routes = [(f"10.{net}.0.0/24", f"p{place}") for place in range(8) for net in range(8) if abs(net - place) == 1]
    found = met(side("A", rails(1, range(8)), routes=routes), side("B", devices, routes=routes))
    assert ([answer for _, _, answer, _ in found], len(found)) == (["yes"] * 7, 7)


def test_9_a_pinned_index_that_is_a_hole_on_one_host() -> None:
    a = side("A", [usual("mlx5_0", "10.1.0.1")], variables={"NCCL_IB_GID_INDEX": "3"})
    b = side(
        "B", [roce("mlx5_0", "L1", "L2", "Z", "Z", "10.1.0.2v1", "10.1.0.2v2")], variables={"NCCL_IB_GID_INDEX": "3"}
    )
    assert met(a, b) == [("mlx5_0", "mlx5_0", "no", PairCause.GID)]
    assert [(host, entry.gid.index, kind) for host, entry, kind in cluster(a, b).gid_faults] == [("B", 3, "empty")]
    free = [side(one.host, one.rdma.devices) for one in (a, b)]
    assert [(one.rdma.entries[0].gid.index) for one in free] == [3, 5]
    assert met(*free) == [("mlx5_0", "mlx5_0", "yes", None)]


def test_10_before_2_21_both_have_link_local_gids_which_tell_no_network() -> None:
    old = [side(name, rails(n, [1]), version=(2, 19, 3)) for n, name in ((1, "A"), (2, "B"))]
    assert met(*old) == [("mlx5_0", "mlx5_0", "unsure", None)]
    assert cluster(*old).gid_faults == ()


def test_11_infiniband_meets_roce_where_the_order_differs() -> None:
    mixed = [infiniband("mlx5_0"), usual("mlx5_1", "10.1.0.1")]
    other = [infiniband("mlx5_0"), usual("mlx5_1", "10.1.0.2")]
    assert [answer for _, _, answer, _ in met(side("A", mixed), side("B", other))] == ["yes", "yes"]
    assert {cause for _, _, _, cause in met(side("A", mixed), side("B", other[::-1]))} == {PairCause.LAYER}


def test_12_a_fused_card_meets_one_port_with_both() -> None:
    two = [usual("a", "10.1.0.1", pci="0000:01:00.0"), usual("b", "10.1.0.3", pci="0000:01:00.1")]
    found = met(side("A", two), side("B", [usual("a", "10.1.0.2", pci="0000:01:00.0")]))
    assert found == [("a", "a", "yes", None), ("b", "a", "yes", None)]
    apart = met(side("A", two, version=(2, 19, 3)), side("B", [usual("a", "10.1.0.2", pci="0000:01:00.0")]))
    assert len(apart) == 1, "before 2.20 they are two devices"


def test_13_the_switchs_mtu_is_none_of_the_pairing() -> None:
    """NCCL's start passes, and large messages are lost: no file of the hosts' shows it; counters and logs do."""
    hosts = [side(name, rails(n, [1])) for n, name in ((1, "A"), (2, "B"))]
    assert met(*hosts) == [("mlx5_0", "mlx5_0", "yes", None)]


def test_14_efa_is_not_in_the_list_without_its_plugin() -> None:
    hosts = [side(name, [infiniband("rdmap0s6", link_layer="Unspecified")]) for name in "AB"]
    assert [one.rdma.entries for one in hosts] == [(), ()]
    assert met(*hosts) == []


def test_15_halves_of_one_cable_are_two_devices() -> None:
    def halves(host: int) -> RdmaSide:
        names = [("rocep1s0f0", "0000:01:00.0", 1), ("roceP2p1s0f0", "0002:01:00.0", 2)]
        return side(f"n{host}", [usual(n, f"10.{net}.0.{host}", pci=pci, guid="g") for n, pci, net in names])

    assert met(halves(1), halves(2)) == [
        ("rocep1s0f0", "rocep1s0f0", "yes", None),
        ("roceP2p1s0f0", "roceP2p1s0f0", "yes", None),
    ]


def test_partition_keys_have_to_meet_one_of_them_as_a_full_member() -> None:
    def keys(one: str, other: str) -> str:
        sides = [side(n, [infiniband("mlx5_0", pkeys=[[0, key]])]) for n, key in (("A", one), ("B", other))]
        return met(*sides)[0][2]

    assert [keys("0xffff", "0x7fff"), keys("0x7fff", "0x7fff"), keys("0x8001", "0xffff")] == ["yes", "no", "no"]
    beyond = side("A", [infiniband("mlx5_0")], variables={"NCCL_IB_PKEY": "5"})
    assert met(beyond, side("B", [infiniband("mlx5_0")]))[0][3] is PairCause.PKEY


def test_a_partition_key_by_its_value_leaves_it_open_since_2_31() -> None:
    def both(version: tuple[int, int, int]) -> str:
        variables = {"NCCL_IB_PKEY": "5", "NCCL_IB_PKEY_VALUE": "0x8001"}
        return met(*(side(n, [infiniband("mlx5_0")], version=version, variables=variables) for n in "AB"))[0][2]

    assert [both((2, 30, 7)), both((2, 31, 2))] == ["no", "unsure"]


def test_infiniband_subnets_are_told_apart_by_their_prefix() -> None:
    other = infiniband("mlx5_0", prefix="fe80:0000:0000:0002")
    assert met(side("A", [infiniband("mlx5_0")]), side("B", [other]))[0][2:] == ("no", PairCause.NETWORK)


def test_version_1_leaves_no_network_though_a_route_leads_there() -> None:
    sides = [
        side(n, rails(h, [net]), variables={"NCCL_IB_GID_INDEX": "2"}, routes=[(f"10.{there}.0.0/24", "p0")])
        for n, h, net, there in (("A", 1, 1, 2), ("B", 2, 2, 1))
    ]
    assert met(*sides)[0][2:] == ("no", PairCause.NETWORK)


def test_the_host_that_explains_all_is_at_fault() -> None:
    nodes = [side(f"n{h}", rails(h, [2, 1] if h == 3 else [1, 2])) for h in range(1, 5)]
    assert [hosts for hosts, _ in cluster(*nodes).at_fault] == [("n3",)]
    assert [hosts for hosts, _ in cluster(*nodes[1:3]).at_fault] == [("n2", "n3")], "of two nobody knows"


def test_lists_that_work_are_found_and_tried() -> None:
    crossed = cluster(side("A", rails(1, [1, 2])), side("B", rails(2, [2, 1])))
    assert crossed.lasting() == {"A": "=mlx5_0", "B": "=mlx5_1"}
    devices = rails(2, range(4))
    devices[1] = roce("mlx5_1", netdev="p1", state="DOWN")
    shifted = cluster(side("A", rails(1, range(4))), side("B", devices), side("C", rails(3, range(4))))
    assert shifted.lasting() == dict.fromkeys("ABC", "=mlx5_0,mlx5_2,mlx5_3")
    assert cluster(side("A", rails(1, [1])), side("B", rails(2, [2]))).lasting() is None


def test_many_hosts_are_compared_along_the_ring_and_with_the_first() -> None:
    nodes = [side(f"n{h}", rails(h, [2, 1] if h == 77 else [1, 2])) for h in range(1, 201)]
    found = cluster(*nodes)
    assert len(found.pairs) == 2 * (200 + 197)
    assert [hosts for hosts, _ in found.at_fault] == [("n77",)]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[RdmaSide, RdmaSide]:
    """Two hosts with up to six devices each, on nets, with tables and variables as they come."""
    variables = {
        key: value
        for key, values in {
            "NCCL_IB_HCA": ["mlx5", "=mlx5_0,mlx5_1", "^mlx5_2", "^=mlx5_0", "mlx5_3:1", "mlx4"],
            "NCCL_IB_GID_INDEX": ["3", "2", "0", "-1", "9"],
            "NCCL_IB_ADDR_RANGE": ["10.1.0.0/16", "10.0.0.0/8"],
            "NCCL_IB_MERGE_NICS": ["0"],
            **{name: ["1"] for name in AWARE},
        }.items()
        if (value := draw(st.sampled_from([None, None, *values]))) is not None
    }
    version = draw(st.sampled_from([(2, 18, 3), (2, 20, 5), (2, 21, 5), (2, 23, 4), NEW, (2, 29, 7), RAILS]))

    def host(number: int) -> RdmaSide:
        devices: list[RdmaDevice] = []
        for place in range(draw(st.integers(0, 6))):
            name, pci = f"mlx5_{place}", f"0000:0{draw(st.integers(1, 4))}:00.{place}"
            net, state = draw(st.integers(1, 3)), draw(st.sampled_from(["ACTIVE"] * 5 + ["DOWN"]))
            kind = draw(st.sampled_from(["usual"] * 4 + ["bare", "late", "ib"]))
            address = f"10.{net}.0.{number}"
            devices.append(
                infiniband(name, state=state)
                if kind == "ib"
                else roce(name, "L1", "L2", netdev=f"p{place}", state=state, pci=pci)
                if kind == "bare"
                else roce(name, *["L1", "L2", *["Z"] * (2 if kind == "late" else 0), f"{address}v1", f"{address}v2"],
                          netdev=f"p{place}", state=state, pci=pci)
            )  # fmt: skip
        routes = [(f"10.{n}.0.0/24", f"p{p}") for n in (1, 2, 3) for p in range(3) if draw(st.integers(0, 9)) == 0]
        return side(f"n{number}", devices, version=version, routes=routes, variables=variables)

    return host(1), host(2)


@settings(max_examples=1000)
@given(layouts())
def test_random_layouts_hold_no_contradiction(both: tuple[RdmaSide, RdmaSide]) -> None:
    a, b = both
    for one in both:
        assert [entry.index for entry in one.rdma.entries] == list(range(len(one.rdma.entries)))
        assert all(entry.port.state == "ACTIVE" for entry in one.rdma.entries)
        listed = [entry.index for nic in one.rdma.nics for entry in nic.members]
        assert sorted(listed) == list(range(len(one.rdma.entries))), "each port is of one device"
    pairs = list(joined(a, b))
    aware = a.rdma.version >= RAILS and "NCCL_IB_SUBNET_AWARE_ROUTING" in a.rdma.variables
    if not aware:
        assert all(here in a.rdma.nics[place].members for place, here, _ in pairs), "equal positions"
        assert all(there in b.rdma.nics[place].members for place, _, there in pairs)
    for _, here, there in pairs:
        talk, back = can_talk(a, here, b, there), can_talk(b, there, a, here)
        assert (talk.answer, talk.cause) == (back.answer, back.cause), "who asks does not matter"
        if talk.answer is Reachable.YES and here.is_roce:
            assert there.is_roce
            for mine, own, other in ((a, here.gid.entry, there.gid.entry), (b, there.gid.entry, here.gid.entry)):
                assert own is not None
                assert other is not None
                assert is_usable(own)
                assert roce_version(own) == roce_version(other)
                shares = str(ip_of(own)).split(".")[:3] == str(ip_of(other)).split(".")[:3]
                routed = any(
                    ip_of(other) in ipaddress.ip_network(route.destination) and route.interface == own.interface
                    for route in (mine.nccl.routes if isinstance(mine.nccl.routes, tuple) else ())
                )
                assert shares or routed
        if talk.answer is Reachable.NO:
            assert talk.cause is not None
            assert talk.why
    faults = cluster(a, b)
    missing = {(host, entry.index) for host, entry, _ in faults.gid_faults}
    pinned = any("NCCL_IB_GID_INDEX" in one.rdma.variables for one in both)
    for pair in faults.pairs:
        if pair.talk.cause is PairCause.GID and len(a.rdma.nics) == len(a.rdma.entries) and not aware and not pinned:
            names = {(pair.source, pair.here.index), (pair.target, pair.there.index)}
            assert names & missing or pair.here.index != pair.there.index, "unlike GIDs are somebody's fault"
