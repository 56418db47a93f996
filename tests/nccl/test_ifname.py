from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.report import NcclInterface
from nccl_doctor.nccl.cluster_nccl import answers, answers_for
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl, socket_interfaces
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.snapshot.system import LibncclAnswer
from nccl_doctor.text.inet import address_of
from tests.checks.snapshots import UNREACHABLE, load, patched

FIXTURES = Path(__file__).parents[1] / "checks" / "interfaces"


def alone(patch: dict[str, Any]) -> Snapshot:
    whole = patched({"hosts": {"node1": patch}})
    cluster = whole.cluster.model_copy(update={"nodes": whole.cluster.nodes[:1]})
    return whole.model_copy(update={"hosts": whole.hosts[:1], "cluster": cluster})


def test_a_healthy_cluster_needs_nothing() -> None:
    answer = answers(patched({}))
    assert [(row.name, row.nccl_interface and row.nccl_interface.name, row.set) for row in answer.hosts] == [
        (name, "eno1", {}) for name in ("node1", "node2", "node3")
    ]
    assert answer.exports == ()


def test_one_host_with_a_bridge_in_front() -> None:
    answer = answers(load(FIXTURES / "ifname_needed" / "fires-on-one-host.json"))
    assert answer.hosts[1].reason == "comes before eno1 in the kernel's order; no other host can reach it"
    assert (answer.hosts[1].nccl_interface and answer.hosts[1].nccl_interface.address) == "172.19.0.1"
    block = answer.exports
    assert [one.hosts for one in block] == [None]
    assert block[0].lines == ("export NCCL_SOCKET_IFNAME='=eno1'", "export GLOO_SOCKET_IFNAME=eno1")


def test_a_caret_that_lets_lo_through_is_called_what_it_is() -> None:
    answer = answers(load(FIXTURES / "ifname_wrong_interface" / "fires.json"))
    assert {row.nccl_interface.name for row in answer.hosts if row.nccl_interface} == {"lo"}
    assert all("^docker" in row.reason and "no other host can reach it" in row.reason for row in answer.hosts)


def test_no_match_ends_nccl() -> None:
    answer = answers(load(FIXTURES / "ifname_no_match" / "fires.json"))
    assert [row.nccl_interface for row in answer.hosts] == [None] * 3
    assert "Bootstrap : no socket interface found" in answer.hosts[0].reason


def test_this_machine_alone() -> None:
    fine = answers(alone({})).hosts
    assert (fine[0].nccl_interface and fine[0].nccl_interface.name, fine[0].set) == ("eno1", {})
    loop = answers(alone({"node": {"env": {"NCCL_SOCKET_IFNAME": "^docker"}}})).hosts
    assert loop[0].reason.endswith("no other host could reach it")
    assert loop[0].set["NCCL_SOCKET_IFNAME"] == "=eno1"


def test_as_another_version_would() -> None:
    down = load(FIXTURES / "interface_down" / "fires-before-2.28.json")
    assert answers(down, (2, 27, 7)).hosts[1].nccl_interface is not None
    assert answers(down, (2, 28, 9)).hosts[1].nccl_interface is None


def test_what_nobody_can_tell_is_said() -> None:
    answer = answers(patched({"hosts": {"node2": {"facts": {"interfaces": {"$unknown": "netlink is refused"}}}}}))
    assert not answer.hosts[1].known
    assert answer.hosts[1].reason == "not known: netlink is refused"


def test_an_unknown_version_is_no_gap_where_all_versions_agree() -> None:
    assert answers(patched({"hosts": {"node2": {"facts": {"torch": None}}}})).hosts[1].known
    bridged = load(FIXTURES / "interface_down" / "fires.json").hosts[1]
    assert bridged.facts is not None
    unversioned = bridged.model_copy(update={"facts": bridged.facts.model_copy(update={"torch": None})})
    seen = host_nccl(unversioned)
    assert isinstance(seen, Unknown)
    assert "2.28.3" in seen.reason


def told(
    name: str | None = None, address: str | None = None, version: str | None = "2.27.7", error: str | None = None
) -> LibncclAnswer:
    return LibncclAnswer(version=version, interface=name, address=address, error=error)


def asked(answer: LibncclAnswer | Unknown | None, **env: str) -> Host:
    """The first host of a healthy cluster, whose libnccl answered this."""
    host = patched({}).hosts[0]
    assert host.facts is not None
    facts = host.facts.model_copy(update={"libnccl": answer})
    return host.model_copy(update={"facts": facts, "node": host.node.model_copy(update={"env": env})})


def seen_by(host: Host) -> HostNccl:
    seen = host_nccl(host)
    assert isinstance(seen, HostNccl)
    return seen


def reason(host: Host) -> str:
    whole = patched({})
    return answers(whole.model_copy(update={"hosts": (host, *whole.hosts[1:])})).hosts[0].reason


def test_libnccls_word_wins_and_a_disagreement_is_told() -> None:
    host = asked(told("eno9", "10.7.7.7"))
    seen = seen_by(host)
    assert seen.interface == NcclInterface(name="eno9", address="10.7.7.7", nccl_version="2.27.7", source="libnccl")
    assert seen.disagreement == "libnccl 2.27.7 uses eno9 (10.7.7.7); the model of it uses eno1 (10.0.0.1)"
    assert reason(host).startswith(seen.disagreement)


def test_libnccl_and_the_model_agree() -> None:
    seen = seen_by(asked(told("eno1", "10.0.0.1")))
    assert (seen.source, seen.disagreement) == ("libnccl", None)


def test_without_libnccl_the_model_answers() -> None:
    missing = told(version=None, error="libnccl can't be loaded: …")
    for answer in (None, unknown("it did not answer"), missing):
        seen = seen_by(asked(answer))
        assert seen.interface is not None
        assert (seen.interface.name, seen.source, seen.disagreement) == ("eno1", "model", None)


def test_libnccl_that_fails_is_a_disagreement_unless_the_model_fails_as_well() -> None:
    refused = told(error="Call to socket failed")
    seen = seen_by(asked(refused))
    words = 'libnccl 2.27.7 ended with "Call to socket failed"; the model of it uses eno1 (10.0.0.1)'
    assert (seen.source, seen.disagreement, seen.interface) == ("model", words, None)
    assert reason(asked(refused)).endswith(f", but {words}")
    assert seen_by(asked(refused, NCCL_SOCKET_IFNAME="none")).disagreement is None


def test_an_answer_without_the_log_line_is_found_by_its_address() -> None:
    sources = {address: seen_by(asked(told(None, address, "2.99.1"))).source for address in ("10.0.0.1", "10.9.9.9")}
    assert sources == {"10.0.0.1": "libnccl", "10.9.9.9": "model"}


def carries(rdma: list[dict[str, Any]] | Unknown, **env: str) -> list[str]:
    """The interfaces of NET/Socket's data on a host with these RDMA devices."""
    facts = {"rdma": {"$unknown": rdma.reason} if isinstance(rdma, Unknown) else rdma}
    host = patched({"hosts": {"node1": {"facts": facts, "node": {"env": env}}}}).hosts[0]
    return [used.name for used in socket_interfaces(host)]


def ports(state: str, layer: str = "Ethernet") -> list[dict[str, Any]]:
    return [{"name": "mlx5_0", "verbs": 0, "ports": [{"number": 1, "state": state, "link_layer": layer}]}]


def test_sockets_carry_the_data_where_nccl_lists_no_rdma_port() -> None:
    everywhere = [
        carries([]),
        carries(ports("DOWN")),
        carries(ports("ACTIVE"), NCCL_NET="Socket"),
        carries(ports("ACTIVE"), NCCL_IB_DISABLE="2"),
        carries(ports("ACTIVE"), NCCL_IB_HCA="=mlx5_9"),
        carries(unknown("not examined"), NCCL_IB_DISABLE="1"),
    ]
    assert everywhere == [["eno1"]] * len(everywhere)
    nowhere = [
        carries(ports("ACTIVE")),
        carries(ports("ACTIVE"), NCCL_NET="AWS Libfabric"),
        carries(ports("ACTIVE", "Unspecified")),
        carries(unknown("not examined")),
    ]
    assert nowhere == [[]] * len(nowhere)


def test_an_address_names_its_interface_on_each_host_and_what_to_set() -> None:
    found = answers_for(patched({}), address_of("10.0.0.2"))
    assert [(row.has, row.reason) for row in found.hosts] == [
        (("eno1", "10.0.0.1"), "is on the net of 10.0.0.2, 10.0.0.0/24"),
        (("eno1", "10.0.0.2"), "has 10.0.0.2"),
        (("eno1", "10.0.0.3"), "is on the net of 10.0.0.2, 10.0.0.0/24"),
    ]
    assert found.exports[0].lines == ("export NCCL_SOCKET_IFNAME='=eno1'", "export GLOO_SOCKET_IFNAME=eno1")
    assert [block.hosts for block in found.exports] == [None]


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (
            {"facts": {"interfaces": {"addresses": [
                {"interface": "eno1", "family": "inet", "address": "10.9.0.3", "netmask": "255.255.255.0"},
            ]}}},
            "no interface has 10.0.0.1 or another address of 10.0.0.0/24",
        ),
        (
            {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "timed out", "facts": UNREACHABLE}},
            "not known: the host was not reached",
        ),
    ],
)  # fmt: skip
def test_a_setting_names_its_hosts_if_another_host_has_no_interface_to_set(patch: dict[str, Any], why: str) -> None:
    found = answers_for(patched({"hosts": {"node3": patch}}), address_of("10.0.0.1"))
    assert (found.hosts[2].reason, found.hosts[2].set) == (why, {})
    assert [block.hosts for block in found.exports] == [("node1", "node2")]


def test_an_address_of_an_interface_that_nccl_does_not_take_says_which_it_takes() -> None:
    bridge = answers(load(FIXTURES / "ifname_needed" / "fires-on-one-host.json")).hosts[1]
    found = answers_for(load(FIXTURES / "ifname_needed" / "fires-on-one-host.json"), address_of("10.0.0.2"))
    assert bridge.nccl_interface is not None
    assert found.hosts[1].reason == f"has 10.0.0.2; NCCL takes {bridge.nccl_interface.name} as things stand"
    assert found.hosts[1].set["NCCL_SOCKET_IFNAME"] == "=eno1"


def test_an_address_that_nobody_has_sets_nothing() -> None:
    found = answers_for(patched({}), address_of("172.31.9.9"))
    assert {(row.has, row.reason) for row in found.hosts} == {(None, "no interface has 172.31.9.9")}
    assert found.exports == ()
