"""Names are told and kept as deviations, and nothing of what any host said is lost by it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_doctor.collect.facts.host_facts import CommonNames
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.probe.facts.network import deviating, unpacked
from nccl_doctor.snapshot.network import Names, Resolution, addresses_by_name, deviations
from tests.collect.nodes import node

ADDRESSES = ("10.0.0.1", "fd00::1", "node1", "node2", "node3", "node4")
"""Of six nodes, two of them known by literal addresses."""

SOURCE = st.sampled_from([("10.0.0.9", None), ("10.1.0.9", None), (None, "ENETUNREACH")])
FOUND = st.one_of(
    st.builds(
        lambda some, source: {"addresses": some, "error": None, "source": source[0], "source_error": source[1]},
        st.sampled_from([["10.0.0.7"], ["10.0.0.8"], ["10.0.0.7", "10.0.0.8"]]),
        SOURCE,
    ),
    st.builds(
        lambda error: {"addresses": [], "error": error},
        st.sampled_from(["Name or service not known", "no answer in time"]),
    ),
)


def found(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """An address is itself, whatever the resolver."""
    literal = not name.startswith("node")
    return {**told, "addresses": [name], "error": None, "source": told.get("source")} if literal else told


def cluster() -> Cluster:
    nodes = tuple(
        node(name=f"n{rank}", rank=rank).model_copy(update={"address": a}) for rank, a in enumerate(ADDRESSES)
    )
    return Cluster(nodes=nodes, master_addr="node1")


def taken(hosts: list[dict[str, Any]], order: list[int]) -> tuple[list[Names], CommonNames, list[dict[str, Any]]]:
    """Asks the hosts, each before or after others have answered; what they sent, too."""
    sent: list[dict[str, Any]] = [{} for _ in hosts]
    common = CommonNames(whole := cluster())
    asked: dict[int, str] = {}
    names: dict[int, Names] = {}
    for step in order:
        place = step % len(hosts)
        if place not in asked:
            asked[place] = common.known_to(whole.nodes[place])
        elif place not in names:
            sent[place] = deviating(hosts[place], unpacked(asked[place]))
            names[place] = Names.model_validate(sent[place])
            common.learn(whole.nodes[place], names[place])
    done = {place: common.final(whole.nodes[place].name, told) for place, told in names.items()}
    return [one for place in sorted(done) if isinstance(one := done[place], Names)], common, sent


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_answer_comes_out_as_it_was(data: st.DataObject) -> None:
    hosts = [{name: found(name, data.draw(FOUND)) for name in ADDRESSES} for _ in ADDRESSES]
    order = [*data.draw(st.lists(st.integers(0, 5))), *range(6), *range(6)]
    final, _, _ = taken(hosts, order)
    for names, said in zip(final, hosts, strict=True):
        for name, told in said.items():
            assert names.get(name) == Resolution.model_validate(told)


def healthy(place: int) -> dict[str, Any]:
    """All names are known; Debian gives a host's own name 127.0.1.1."""
    mine = {"addresses": ["127.0.1.1"], "error": None, "source": "127.0.0.1", "source_error": None}
    other = {"addresses": ["10.0.0.7"], "error": None, "source": "10.0.0.9", "source_error": None}
    return {name: found(name, mine if name == ADDRESSES[place] else other) for name in ADDRESSES}


def test_healthy_hosts_send_and_keep_no_more_than_their_own_name() -> None:
    final, common, sent = taken(
        [healthy(place) for place in range(6)], [n for place in range(6) for n in (place, place)]
    )
    assert [list(names.own) for names in final[2:]] == [[name] for name in ADDRESSES[2:]]
    assert [list(one["own"]) for one in sent[4:]] == [[name] for name in ADDRESSES[4:]]
    assert common.common["node1"].addresses == ("10.0.0.7",)
    assert addresses_by_name(final)["node2"] == {"10.0.0.7", "127.0.1.1"}
    assert set(deviations({str(n): names for n, names in enumerate(final)})) == set(ADDRESSES)


def test_a_first_host_that_knows_no_names_is_the_only_one_to_say_so() -> None:
    lost = {name: found(name, {"addresses": [], "error": "no"}) for name in ADDRESSES}
    hosts = [lost, *(healthy(place) for place in range(1, 6))]
    final, common, _ = taken(hosts, [n for place in range(6) for n in (place, place)])
    assert {name for name, told in final[0].own.items() if not told.addresses} == set(ADDRESSES[2:])
    assert all(len(names.own) == 1 for names in final[2:])
    assert all(told.addresses for told in common.common.values())


def test_an_unknown_fact_stays_one() -> None:
    assert isinstance(CommonNames(cluster()).final("n0", unknown("no answer in 8 s")), Unknown)


def test_older_snapshots_have_every_name() -> None:
    names = Names.model_validate({"own": {"addresses": ["10.0.0.1"]}, "node2": {"addresses": []}})
    assert (names.get("own"), names.get("10.0.0.5")) == (Resolution(addresses=("10.0.0.1",)), None)
