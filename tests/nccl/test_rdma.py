"""NCCL's list of RDMA devices: the worked examples of its rules, and properties of NCCL_IB_HCA."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.nccl.rdma import choose_gid, list_rdma
from nccl_doctor.nccl.variables import MOST_PORTS, HcaItem, HcaSpec, parse_hca
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.system import RdmaDevice, RdmaGid, RdmaPort
from tests.nccl.rdma_hosts import NEW, infiniband, roce, table, usual

EMPTY = RdmaGid(index=0, gid="::")

V4 = "L1", "L2", "10.0.0.1v1", "10.0.0.1v2"
BOTH = *V4, "10.9.0.1v1", "10.9.0.1v2"
V6 = "L1", "L2", "2001:db8::1v1", "2001:db8::1v2"

TABLES = [
    (V4, {}, 3),
    (BOTH, {}, 3),
    (BOTH, {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, 5),
    (("L1", "L2", "Z", "Z", "10.0.0.1v1", "10.0.0.1v2"), {}, 5),
    (("Z", "Z", "Z", "Z", "10.0.0.1v1", "10.0.0.1v2"), {}, 5),
    (("L1", "L2", "10.0.0.1v1"), {}, 2),
    (("L1", "L2", "Z"), {}, 0),
    (V6, {}, 0),
    (V6, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 3),
    (V6, {"NCCL_IB_ADDR_FAMILY": "af_inet6"}, 0),
    (V4, {"NCCL_IB_ADDR_RANGE": "192.0.2.0/24"}, 0),
    (V4, {"NCCL_IB_ADDR_RANGE": "192.0.2.0"}, 3),
    (V4, {"NCCL_IB_ADDR_RANGE": "2001:db8::/32"}, 3),
    (V4, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
    (("L1", "L2", "169.254.3.4v1", "169.254.3.4v2"), {}, 3),
    (V4, {"NCCL_IB_GID_INDEX": "1"}, 1),
    (V4, {"NCCL_IB_GID_INDEX": ""}, 3),
    (V4, {"NCCL_IB_GID_INDEX": "-1"}, 3),
    (V4, {"NCCL_IB_GID_INDEX": "three"}, 0),
    (V4, {"NCCL_IB_GID_INDEX": "7"}, 7),
]


@pytest.mark.parametrize(("gids", "variables", "index"), TABLES)
def test_the_gid_index_is_chosen_as_since_2_21(gids: tuple[str, ...], variables: dict[str, str], index: int) -> None:
    (port,) = roce("mlx5_0", *gids).ports
    choice = choose_gid(port, variables, NEW)
    assert choice.index == index
    assert (choice.entry is None) == (index >= len(gids) or gids[index] == "Z")


GIDS = st.sampled_from(["L1", "L2", "10.0.0.1v1", "10.0.0.1v2", "2001:db8::1v1", "2001:db8::1v2", "Z"])


@given(st.lists(GIDS, max_size=12), st.sampled_from(["AF_INET", "AF_INET6"]))
def test_a_table_of_any_size_takes_no_longer(gids: list[str], family: str) -> None:
    """What matters is the entries in use, and for the result their neighbours: 20 or 2**62 empty ones are the same."""
    (port,) = roce("mlx5_0", *gids).ports
    indexes = {
        choose_gid(port.model_copy(update={"gid_count": count}), {"NCCL_IB_ADDR_FAMILY": family}, NEW).index
        for count in (len(gids) + 2, len(gids) + 20, 2**62)
    }
    every = [gid.model_copy(update={"index": n}) for n, gid in enumerate([EMPTY] * (len(gids) + 20))]
    used = {gid.index: gid for gid in port.gids}
    whole = port.model_copy(update={"gid_count": len(every), "gids": tuple(used.get(g.index, g) for g in every)})
    assert indexes == {choose_gid(whole, {"NCCL_IB_ADDR_FAMILY": family}, NEW).index}


def test_an_empty_entry_is_of_ipv6() -> None:
    """So libnccl 2.26 to 2.31 (scripts/rdma-fuzz): what comes first of another family than index 0 is taken."""
    port = RdmaPort.model_validate(
        {
            "number": 1,
            "state": "ACTIVE",
            "link_layer": "Ethernet",
            "gid_count": 4,
            "gids": table("10.0.0.1v1", "Z", "L1"),
        }
    )
    assert choose_gid(port, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, NEW).index == 1
    assert choose_gid(port, {}, NEW).index == 0


@pytest.mark.parametrize(("version", "refused"), [((2, 30, 7), False), ((2, 31, 2), True)])
def test_an_index_behind_the_table_costs_every_device_since_2_31(version: VersionNumbers, refused: bool) -> None:
    short = roce("mlx5_1", "L1")
    port = short.ports[0].model_copy(update={"gid_count": 2})
    devices = [usual("mlx5_0", "10.0.0.1"), short.model_copy(update={"ports": (port,)})]
    assert (list_rdma(devices, {"NCCL_IB_GID_INDEX": "3"}, version).refused is not None) is refused
    assert list_rdma(devices, {}, version).refused is None


@pytest.mark.parametrize(("pin", "index"), [(None, 0), ("3", 3), ("", 0)])
def test_before_2_21_the_index_is_the_variables_or_0(pin: str | None, index: int) -> None:
    (port,) = roce("mlx5_0", *V4).ports
    assert choose_gid(port, {} if pin is None else {"NCCL_IB_GID_INDEX": pin}, (2, 20, 5)).index == index


def test_on_infiniband_the_variable_counts_no_more_since_2_22() -> None:
    (port,) = infiniband("mlx5_0").ports
    assert [choose_gid(port, {"NCCL_IB_GID_INDEX": "3"}, (2, n, 0)).index for n in (20, 21, 22, 30)] == [3, 3, 0, 0]
    routable = {"index": 1, "gid": "fe80:0000:0007:0000:ba3f:d2ff:fe00:0001"}
    (port,) = infiniband("mlx5_0", gids=[{"index": 0, "gid": "fe80::1"}, routable]).ports
    assert [choose_gid(port, {}, (2, n, 0)).index for n in (21, 22)] == [0, 1]
    assert choose_gid(port, {"NCCL_IB_ROUTABLE_FLID_GID_INDEX": "0"}, NEW).index == 0


def test_an_index_that_the_probe_did_not_read_is_not_called_empty() -> None:
    (port,) = roce("mlx5_0", *V4).ports
    pinned = [choose_gid(port, {"NCCL_IB_GID_INDEX": str(index)}, NEW) for index in (7, 34, 35, 255, 256)]
    assert [choice.unread for choice in pinned] == [False, False, True, True, False]


def names(
    devices: list[RdmaDevice], hca: str | None = None, version: VersionNumbers = NEW, **variables: str
) -> list[str]:
    settings = variables if hca is None else {**variables, "NCCL_IB_HCA": hca}
    return [str(entry.label) for entry in list_rdma(devices, settings, version).entries]


TWELVE = [infiniband(f"mlx5_{n}") for n in range(12)]
TWO = [infiniband("mlx5_0"), infiniband("mlx5_1")]

FILTERS = [
    ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"]),
    ("=mlx5_1", ["mlx5_1"]),
    ("^mlx5_1", [f"mlx5_{n}" for n in (0, *range(2, 10))]),
    ("^=mlx5_1", [f"mlx5_{n}" for n in (0, *range(2, 12))]),
    ("=mlx5_1,mlx5_0", ["mlx5_0", "mlx5_1"]),  # a list filters and never orders
    ("mlx5_11,=mlx5_2", ["mlx5_11"]),  # "=" in a later item is a part of its name
    ("=^mlx5_1", []),
    ("=mlx5_0, mlx5_1", ["mlx5_0"]),  # blanks count
    ("=mlx5_0:1,mlx5_1:2,mlx5_2:-1,mlx5_3:0,mlx5_4:x", ["mlx5_0", "mlx5_2"]),
    ("=mlx5_0:1:4:5", ["mlx5_0"]),
    ("=:1,mlx5_3", ["mlx5_3"]),
    ("mlx5_9,mlx4_0", ["mlx5_9"]),
    ("eth0", []),
    ("^", []),
    ("^=", []),
    ("^,", []),
    ("", [f"mlx5_{n}" for n in range(12)]),
    (",,", [f"mlx5_{n}" for n in range(12)]),
    ("=", [f"mlx5_{n}" for n in range(12)]),
]


@pytest.mark.parametrize(("hca", "kept"), FILTERS)
def test_nccl_ib_hca(hca: str, kept: list[str]) -> None:
    assert names(TWELVE, hca) == kept


def test_excluding_another_port_excludes_nothing() -> None:
    assert names(TWO, "^mlx5_0:2") == ["mlx5_0", "mlx5_1"]


def test_an_empty_port_is_any_since_2_30_7_and_0_before() -> None:
    assert names(TWO, "=mlx5_0:", version=(2, 30, 7)) == ["mlx5_0"]
    assert names(TWO, "=mlx5_0:", version=(2, 30, 4)) == []


def test_rail_and_plane_are_read_since_2_30_7() -> None:
    assert parse_hca("mlx5_0:1:3:4", (2, 30, 7)).items == (HcaItem("mlx5_0", 1, 3, 4),)
    assert parse_hca("mlx5_0:1:3:4", (2, 30, 4)).items == (HcaItem("mlx5_0", 1),)


ITEMS = st.from_regex(r"[a-z0-9_^=]{1,6}(:-?[0-9]{1,2})?", fullmatch=True)


@given(st.booleans(), st.booleans(), st.lists(ITEMS, max_size=40), st.text("abx01_^=", min_size=1), st.integers(1, 3))
def test_the_grammar(exclude: bool, exact: bool, items: list[str], name: str, port: int) -> None:
    body = ",".join(items)
    if not exclude and not exact and body[:1] in ("^", "="):
        body = f"q,{body}"
    if exclude and not exact and body[:1] == "=":
        body = f"q,{body}"
    value = "^" * exclude + "=" * exact + body
    spec = parse_hca(value)
    assert (spec.exclude, spec.exact) == (exclude, exact)
    assert len(spec.items) == min(MOST_PORTS, len([part for part in body.split(",") if part]))
    assert spec.accepts(name, port) != HcaSpec(not exclude, exact, spec.items).accepts(name, port)
    if exact and spec.items:  # what a whole name lets through, its beginning does, too
        assert HcaSpec(False, False, spec.items).accepts(name, port) or not HcaSpec(False, True, spec.items).accepts(
            name, port
        )
    shuffled = HcaSpec(exclude, exact, spec.items[::-1])
    assert spec.accepts(name, port) == shuffled.accepts(name, port)


@given(st.text(max_size=60), st.sampled_from([(2, 18, 3), (2, 27, 7), (2, 30, 7)]))
def test_no_value_breaks_it(value: str, version: VersionNumbers) -> None:
    assert len(parse_hca(value, version).items) <= MOST_PORTS
    kept = names(TWELVE, value, version)
    assert [int(name[5:]) for name in kept] == sorted(int(name[5:]) for name in kept)


def test_a_port_that_is_down_is_not_there_and_those_behind_it_move_up() -> None:
    devices = [infiniband("mlx5_0"), infiniband("mlx5_1", state="DOWN"), infiniband("mlx5_2", state="INIT"), *TWO[1:]]
    listed = list_rdma(devices, {}, NEW)
    assert [(entry.index, entry.label) for entry in listed.entries] == [(0, "mlx5_0"), (1, "mlx5_1")]
    assert [device.name for device, _ in listed.down] == ["mlx5_1", "mlx5_2"]


def test_efa_is_not_listed_and_what_does_not_open_is_not_either() -> None:
    efa = infiniband("rdmap0", link_layer="Unspecified")
    closed = infiniband("mlx5_0").model_copy(update={"problem": "EACCES"})
    listed = list_rdma([efa, closed, infiniband("mlx5_1")], {}, NEW)
    assert [entry.label for entry in listed.entries] == ["mlx5_1"]
    assert [device.name for device in listed.closed] == ["mlx5_0"]
    assert list_rdma([closed], {"NCCL_IB_HCA": "^mlx5_0"}, NEW).closed == ()


@pytest.mark.parametrize(
    ("variables", "off"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1"),
        ({"NCCL_IB_DISABLE": "0", "NCCL_NET": "ib"}, None),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket"),
    ],
)
def test_variables_that_leave_rdma_aside(variables: dict[str, str], off: str | None) -> None:
    listed = list_rdma(TWO, variables, NEW)
    assert (listed.off, bool(listed.entries)) == (off, off is None)


def test_the_order_is_the_kernels_and_since_2_29_7_the_pci_buss() -> None:
    devices = [
        usual("roceP2p1s0f0", "10.0.2.1", verbs=2, pci="0002:01:00.0"),
        usual("rocep1s0f0", "10.0.1.1", verbs=3, pci="0000:01:00.0"),
        usual("virtual", "10.0.3.1", verbs=0),
    ]
    assert names(devices) == ["virtual", "roceP2p1s0f0", "rocep1s0f0"]
    by_bus = ["rocep1s0f0", "roceP2p1s0f0", "virtual"]
    assert names(devices, version=(2, 29, 7)) == by_bus
    assert names(devices, version=(2, 29, 7), NCCL_IB_DEVICE_PCI_ORDER="0") == names(devices)


def test_at_most_32_ports_are_listed() -> None:
    assert len(names([infiniband(f"mlx5_{n}") for n in range(40)])) == MOST_PORTS


def card(name: str, function: str, guid: str = "a", layer: str = "Ethernet") -> RdmaDevice:
    made = usual(name, "10.0.0.1", guid=guid, pci=function)
    port = made.ports[0].model_copy(update={"link_layer": layer})
    return made.model_copy(update={"ports": (port,), "pci": ("0000:00:01.0", function), "numa": 0})


def fused(devices: list[RdmaDevice], version: VersionNumbers, **variables: str) -> list[str]:
    nics = list_rdma(devices, variables, version).nics
    return ["+".join(entry.label for entry in nic.members) for nic in nics]


TWIN = [card("a", "0000:01:00.0"), card("b", "0000:01:00.1"), card("c", "0000:02:00.0", "c")]


@pytest.mark.parametrize("version", [(2, 20, 5), (2, 23, 4), (2, 24, 3), (2, 30, 7)])
def test_functions_of_a_card_are_fused_since_2_20(version: VersionNumbers) -> None:
    assert fused(TWIN, version) == ["a+b", "c"]
    assert fused(TWIN, version, NCCL_IB_MERGE_NICS="0") == ["a", "b", "c"]
    assert fused(TWIN, (2, 19, 3)) == ["a", "b", "c"]


def test_the_levels_of_2_24() -> None:
    assert fused(TWIN, NEW, NCCL_NET_MERGE_LEVEL="LOC") == ["a", "b", "c"]
    assert fused(TWIN, NEW, NCCL_NET_MERGE_LEVEL="PIX") == ["a+b+c"]
    assert fused(TWIN, (2, 23, 4), NCCL_NET_MERGE_LEVEL="LOC") == ["a+b", "c"]
    halves = [card("a", "0000:01:00.0"), card("b", "0002:01:00.0")]
    halves[1] = halves[1].model_copy(update={"pci": ("0002:00:00.0", "0002:01:00.0")})
    assert fused(halves, NEW) == ["a", "b"]
    assert fused(halves, NEW, NCCL_NET_MERGE_LEVEL="PHB") == ["a+b"]
    assert fused(halves, NEW, NCCL_NET_FORCE_MERGE="a,b") == ["a+b"]
    assert fused(halves, NEW, NCCL_NET_FORCE_MERGE="a,b;c:2") == ["a+b"]


def test_link_layers_are_never_fused_and_no_more_than_the_version_takes() -> None:
    mixed = [card("a", "0000:01:00.0"), card("b", "0000:01:00.1", layer="InfiniBand"), card("c", "0000:01:00.2")]
    assert fused(mixed, (2, 23, 4)) == ["a+c", "b"]
    assert fused(mixed, NEW) == ["a", "b", "c"]
    many = [card(f"f{n}", f"0000:01:00.{n}") for n in range(6)]
    assert fused(many, (2, 23, 4)) == ["f0+f1", "f2+f3", "f4+f5"]
    assert fused(many, (2, 29, 0)) == ["f0+f1+f2+f3", "f4+f5"]
    assert fused(many, (2, 30, 7)) == ["f0+f1+f2+f3+f4+f5"]


def test_virtual_functions_are_one_with_their_card_unless_told_otherwise() -> None:
    vfs = [card("v0", "0000:01:00.2"), card("v1", "0000:01:01.2")]
    for version in ((2, 23, 4), (2, 27, 7)):
        assert fused(vfs, version) == ["v0+v1"]
        assert fused(vfs, version, NCCL_IB_MERGE_VFS="0") == ["v0", "v1"]


def test_rails_keep_devices_apart_where_the_policy_says_so() -> None:
    hca = "=a:1:1,b:1:2,c:1:1"
    assert fused(TWIN, (2, 30, 7), NCCL_IB_HCA=hca, NCCL_NET_MERGE_POLICY="RAIL") == ["a", "b", "c"]
    assert fused(TWIN, (2, 30, 7), NCCL_IB_HCA="=a:1:1,b:1:1,c:1:1", NCCL_NET_MERGE_POLICY="RAIL") == ["a+b", "c"]
