from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.checks.ports.firewall_blocks_port import firewall_blocks_port
from nccl_doctor.checks.view import Derived, View
from nccl_doctor.firewall.blame import Blame, ExplainedDials, opening, remedies
from nccl_doctor.firewall.connection import Ends, Ruleset, compile_rules, handshake, reject_outcome, syn
from nccl_doctor.firewall.remedy import Opening
from nccl_doctor.firewall.route_lookup import path_of, route_to
from nccl_doctor.judge import diagnose
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Diagnosis, Finding
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.mesh import LostConnections
from nccl_doctor.snapshot.network import IptablesSave
from tests.checks.snapshots import patched
from tests.firewall.facts import ACCEPT, DROP, captured, iptables_facts, nft_facts, tcp

OPEN = nft_facts()
ESTABLISHED = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}


def snapshot(firewalls: dict[str, Any], failed: list[tuple[str, str, int, str]], **mesh: Any) -> Snapshot:
    hosts = {
        name: {"facts": {"firewall": firewalls.get(name, OPEN).model_dump(by_alias=True, mode="json")}}
        for name in ("node1", "node2", "node3")
    }
    dials = [
        {"src": src, "dst": dst, "address": f"10.0.0.{dst[-1]}", "port": port, "outcome": outcome}
        for src, dst, port, outcome in failed
    ]
    return patched({"hosts": hosts, "mesh": {"failed": dials, **mesh}})


def judge(seen: Snapshot) -> ExplainedDials:
    return Derived(seen).dials.firewall


def reported(seen: Snapshot) -> tuple[Diagnosis, ...]:
    names = ("firewall-blocks-port", "firewall-blocks-ephemeral")
    return diagnose.judge(seen, "check", lambda check: check.name in names).diagnoses


def opened(blames: list[Blame] | tuple[Blame, ...], seen: Snapshot) -> Opening:
    return opening(blames[0], blames, seen, Derived(seen).nccl.addresses)


def test_the_listeners_rule_is_blamed_and_only_the_peers_it_stops_are_let_in() -> None:
    seen = snapshot({"node1": captured("firewalld_public")}, [("node2", "node1", 29500, "no-route")])
    (blame,) = judge(seen).blames
    assert (blame.host.name, blame.direction, blame.manager, blame.unexpected_outcomes) == (
        "node1",
        "input",
        "firewalld",
        [],
    )
    assert opened([blame], seen).peers == ("10.0.0.2",)
    assert opened([blame], seen).ports == ((29500, 29500), (32768, 60999))


def test_a_mesh_that_was_a_sample_lets_the_whole_cluster_in() -> None:
    seen = snapshot({"node1": nft_facts([DROP])}, [("node2", "node1", 29500, "timed-out")], tested=4)
    (blame,) = judge(seen).blames
    assert set(opened([blame], seen).peers) == {"10.0.0.2", "10.0.0.3"}


def test_the_diallers_own_rule_is_blamed_on_the_dialler() -> None:
    seen = snapshot({"node2": nft_facts([DROP], hook="output")}, [("node2", "node1", 29500, "timed-out")])
    (blame,) = judge(seen).blames
    assert (blame.host.name, blame.direction) == ("node2", "output")
    assert opened([blame], seen).peers == ("10.0.0.1",)


def test_answers_are_followed_back() -> None:
    seen = snapshot({"node2": nft_facts(policy="drop")}, [("node2", "node1", 29500, "timed-out")])
    (blame,) = judge(seen).blames
    assert (blame.host.name, blame.direction) == ("node2", "input")
    tracked = nft_facts([ESTABLISHED, ACCEPT], policy="drop")
    assert judge(snapshot({"node2": tracked}, [("node2", "node1", 29500, "timed-out")])).blames == ()


PART = {
    "match": {
        "op": "==",
        "left": {"payload": {"protocol": "tcp", "field": "dport"}},
        "right": {"range": [40000, 50000]},
    }
}


@pytest.mark.parametrize(("source_port", "blamed"), [(45000, True), (39999, False), (None, None)])
def test_the_diallers_own_port_decides_about_answers(source_port: int | None, blamed: bool | None) -> None:
    """It dropped that dial; the next one of another host may have such a port, so all are let in, and the host itself."""
    seen = snapshot({"node1": nft_facts([PART, DROP])}, [("node1", "node2", 32768, "timed-out")])
    dials = [dial.model_copy(update={"source_port": source_port}) for dial in known(seen.mesh).failed]
    seen = seen.model_copy(update={"mesh": known(seen.mesh).model_copy(update={"failed": tuple(dials)})})
    judged = judge(seen)
    assert ([blame.host.name for blame in judged.blames], len(judged.gaps)) == (
        (["node1"], 0) if blamed else ([], 0 if blamed is False else 1)
    )
    if blamed:
        assert set(opened(judged.blames, seen).peers) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_a_rule_that_stops_answers_is_said_to() -> None:
    failed = [("node2", "node1", 29500, "timed-out")]
    at_the_dialler = snapshot({"node2": nft_facts(policy="drop")}, failed)
    at_the_master = snapshot({"node1": nft_facts(policy="drop", hook="output")}, failed)
    both_ways = snapshot({"node2": nft_facts(policy="drop")}, [*failed, ("node1", "node2", 40001, "timed-out")])
    to_node2 = snapshot({"node2": nft_facts(policy="drop", hook="output")}, [("node1", "node2", 40001, "timed-out")])
    places = (at_the_dialler, both_ways, at_the_master, to_node2)
    said = [diagnosis.message for seen in places for diagnosis in reported(seen)]
    assert said == [
        "nftables on node2 drops replies to its own connections to port 29500, so the rendezvous will fail.",
        (
            "nftables on node2 drops replies to its own connections and the other hosts' connections to "
            "NCCL's ephemeral ports, so the rendezvous will fail."
        ),
        "nftables on node1 drops its replies to the other hosts' connections to port 29500, so the rendezvous will fail.",
        "nftables on node2 drops its replies to the other hosts' connections to NCCL's ephemeral ports.",
    ]


def test_what_no_rule_explains_is_nobodys_fault_here() -> None:
    judged = judge(snapshot({}, [("node2", "node1", 29500, "timed-out")]))
    assert (judged.blames, judged.gaps) == ((), ())


def test_what_a_rule_stops_is_explained_and_the_rest_is_not() -> None:
    failed = [("node2", "node1", 29500, "timed-out"), ("node1", "node3", 40005, "timed-out")]
    seen = snapshot({"node1": nft_facts([tcp("dport", 29500), DROP])}, failed)
    assert [dial.dst for dial in judge(seen).unexplained(known(seen.mesh))] == ["node3"]


def test_a_dial_that_never_left_its_program_is_not_a_rules_fault() -> None:
    seen = snapshot({"node1": nft_facts([DROP])}, [("node2", "node1", 29500, "no-source-address")])
    assert judge(seen).blames == ()


def test_a_sure_rule_counts_though_the_other_hosts_rules_are_unknown() -> None:
    document = snapshot({"node1": nft_facts([DROP])}, [("node2", "node1", 29500, "timed-out")]).model_dump(
        by_alias=True
    )
    document["hosts"][1]["facts"]["firewall"] = {"$unknown": "sudo needs a password"}
    judged = judge(Snapshot.model_validate(document))
    assert [blame.host.name for blame in judged.blames] == ["node1"]
    assert judged.gaps == ()


def test_a_dial_that_fails_otherwise_is_a_surprise() -> None:
    seen = snapshot({"node1": nft_facts([DROP])}, [("node2", "node1", 29500, "refused")])
    (blame,) = judge(seen).blames
    assert [dial.outcome for dial in blame.unexpected_outcomes] == ["refused"]


def test_a_dial_that_passes_against_the_rules_is_told() -> None:
    ports = {"node1": [29500], "node2": [40000], "node3": [40000]}
    everybody = nft_facts([tcp("dport", 29500), DROP])
    failed = [("node2", "node1", 29500, "timed-out")]
    answered = {"node1": {"10.0.0.1": ["node3"]}}
    seen = snapshot({"node1": everybody}, failed, ports=ports, answered=answered)
    (blame,) = judge(seen).blames
    assert blame.unexpected_passes == [("node3", 29500)]
    undialled = snapshot({"node1": everybody}, failed, ports=ports)
    assert judge(undialled).blames[0].unexpected_passes == []
    (found,) = firewall_blocks_port(View(Derived(seen), seen.reached))
    assert isinstance(found, Finding)
    assert any(line.startswith("but     node3 -> node1:29500 passed") for line in map(str, found.evidence))
    both = [("node2", "node1", 29500, "timed-out"), ("node3", "node1", 29500, "timed-out")]
    assert judge(snapshot({"node1": everybody}, both, ports=ports, answered=answered)).blames[0].unexpected_passes == []


def test_every_rule_in_the_way_is_opened() -> None:
    both = iptables_facts("-A INPUT -p tcp -j DROP").model_copy(update={"nft": nft_facts([DROP]).nft})
    seen = snapshot({"node1": both}, [("node2", "node1", 29500, "timed-out")])
    (blame,) = judge(seen).blames
    programs = {str(one.line).split()[0] for one in remedies(blame, opened([blame], seen)).operations}
    assert programs == {"nft", "iptables-legacy"}


LIMIT = "-A INPUT -p tcp -m connlimit --connlimit-above 100 -j REJECT --reject-with tcp-reset"


@pytest.mark.parametrize(("stood", "grew", "named"), [(0, 3, "-P INPUT DROP"), (3, 0, "connlimit")])
def test_where_every_branch_blocks_the_counters_name_the_rule(stood: int, grew: int, named: str) -> None:
    before = iptables_facts(f"[0:0] {LIMIT}", policy="DROP")
    assert isinstance(before.iptables, tuple)
    (save,) = before.iptables
    assert isinstance(save, IptablesSave)
    text = save.text.replace("[0:0] -A", f"[{stood}:180] -A").replace("DROP [7:420]", f"DROP [{7 + grew}:600]")
    after = before.model_copy(update={"iptables": (save.model_copy(update={"text": text}),)})
    seen = snapshot({"node1": before}, [("node2", "node1", 29500, "timed-out")])
    facts = seen.hosts[0].facts
    assert facts is not None
    host = seen.hosts[0].model_copy(update={"facts": facts.model_copy(update={"firewall_after": after})})
    (blame,) = judge(seen.model_copy(update={"hosts": (host, *seen.hosts[1:])})).blames
    (rule,) = blame.rules
    assert named in rule.text


def with_ranks(seen: Snapshot, count: int) -> Snapshot:
    hosts = tuple(
        host.model_copy(update={"node": host.node.model_copy(update={"nproc_per_node": count})}) for host in seen.hosts
    )
    return seen.model_copy(update={"hosts": hosts})


RATES = [
    "-A INPUT -p tcp --syn -m connlimit --connlimit-above 80 -j REJECT",
    "-A INPUT -p tcp -m hashlimit --hashlimit-above 20/sec --hashlimit-mode srcip --hashlimit-name x -j DROP",
    "-A INPUT -m limit --limit 50/sec --limit-burst 50 -j ACCEPT\n-A INPUT -j DROP",
    "-A INPUT -m limit --limit 900/min --limit-burst 20 -j ACCEPT\n-A INPUT -j DROP",
    "-A OUTPUT -p tcp -m connlimit --connlimit-above 80 --connlimit-daddr -j REJECT",
]
WITNESSES = {"node1": {"10.0.0.1": ["node2", "node3"]}, "node2": {"10.0.0.2": ["node1"]}}


@pytest.mark.parametrize("rules", RATES)
def test_a_rule_that_admits_fewer_than_the_job_needs_is_a_warning_where_the_dials_passed(rules: str) -> None:
    limited = snapshot({"node1": iptables_facts(rules)}, [], answered=WITNESSES)
    assert not reported(limited)  # one rank on each host needs eight
    (found,) = reported(with_ranks(limited, 8))
    assert (found.name, found.severity.value, found.hosts) == ("firewall-blocks-ephemeral", "warning", ("node1",))
    assert " limits " in found.message
    assert "176" in found.message
    assert [command.host for command in found.fix.commands] == ["node1"] * len(found.fix.commands) != []


@pytest.mark.parametrize(
    "rules",
    [
        "-A INPUT -m limit --limit 1000/sec -j ACCEPT\n-A INPUT -j DROP",
        "-A INPUT -m limit --limit 50/sec --limit-burst 200 -j ACCEPT\n-A INPUT -j DROP",
        "-A INPUT -m hashlimit --hashlimit-above 500/sec --hashlimit-mode srcip --hashlimit-name x -j DROP",
        "-A INPUT -p tcp -m connlimit --connlimit-above 1000 -j REJECT",
        "-A INPUT -p tcp --dport 22 -m recent --update --seconds 60 --hitcount 5 --name x -j DROP",
        "-A INPUT -p icmp -m limit --limit 1/sec -j ACCEPT",
        "-A INPUT -m limit --limit 3/min -j LOG",
        "-A INPUT -s 10.0.0.0/24 -j ACCEPT\n-A INPUT -p tcp -m connlimit --connlimit-above 80 -j REJECT",
    ],
)
def test_a_limit_that_a_job_does_not_meet_is_none(rules: str) -> None:
    assert not reported(with_ranks(snapshot({"node1": iptables_facts(rules)}, [], answered=WITNESSES), 8))


def test_a_limit_that_stopped_a_dial_is_told_with_that_dial() -> None:
    refused = snapshot({"node1": iptables_facts(RATES[0])}, [("node2", "node1", 40001, "refused")], answered=WITNESSES)
    limited = with_ranks(refused, 8)
    assert not judge(limited).limits
    assert judge(limited).gaps


@pytest.mark.parametrize(
    ("rules", "evidence"),
    [
        ("-A INPUT -p tcp -m statistic --mode random --probability 0.5 -j DROP", "this rule might drop them: -A INPUT"),
        (
            "-A INPUT -p tcp -m hashlimit --hashlimit-above 10/sec --hashlimit-mode srcip --hashlimit-name x -j DROP",
            None,
        ),
        ("-A INPUT -p udp -j DROP", ""),
    ],
)
def test_packets_that_many_connections_at_once_lose(rules: str, evidence: str | None) -> None:
    """A rule that drops some is named; a limit that suffices for the job is no fault, though 32 connections exceed it."""
    ends = {"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 40001}
    lost = LostConnections.model_validate({**ends, "tried": 32, "lost": 5, "resent": 12})
    seen = snapshot({"node1": iptables_facts(rules)}, [], answered=WITNESSES)
    seen = seen.model_copy(update={"mesh": known(seen.mesh).model_copy(update={"lost_connections": (lost,)})})
    found = diagnose.judge(seen, "check", lambda check: check.category == "ports").diagnoses
    assert [(one.name, one.severity.value) for one in found] == [("round-trip-long", "warning")] * (
        evidence is not None
    )
    assert any(evidence and evidence in line for one in found for line in map(str, one.evidence)) is bool(evidence)


def test_two_nodes_of_one_machine_talk_over_its_loopback() -> None:
    host = patched({}).hosts[0]
    path = path_of("10.0.0.1", host, host, {})
    assert path
    assert (path.ends.iif, path.ends.oif) == ("lo", "lo")


def test_the_narrowest_route_is_taken() -> None:
    facts = patched({}).hosts[0].facts
    assert facts
    assert isinstance(facts.routes, tuple)
    narrow = facts.routes[0].model_copy(update={"destination": "10.0.0.2/32", "interface": "ib0"})
    assert route_to(facts.model_copy(update={"routes": (*facts.routes, narrow)}), "10.0.0.2") == "ib0"
    assert route_to(facts, "10.0.0.2") == "eno1"
    assert route_to(facts.model_copy(update={"routes": ()}), "10.0.0.2") is None


def rules(*expressions: list[dict[str, Any]], hook: str = "input") -> Ruleset:
    return compile_rules(nft_facts(*expressions, hook=hook))


def test_a_rejected_last_segment_shows_late_or_never() -> None:
    acks = [tcp("flags", "ack", "in"), {"reject": {"type": "icmp", "expr": "host-unreachable"}}]
    (found,) = handshake(syn("10.0.0.2", "10.0.0.1", 1), Ends("eno1", "eno1"), rules(), rules(acks))
    assert (found.segment, sorted(found.outcomes)) == ("ACK", ["no-route", "timed-out"])


@pytest.mark.parametrize(
    ("how", "version", "outcome"),
    [
        ("tcp reset", 4, "refused"),
        ("tcp-reset", 6, "refused"),
        ("icmp-host-prohibited", 4, "no-route"),
        ("icmpx admin-prohibited", 4, "no-route"),
        ("icmpx admin-prohibited", 6, "failed"),
        ("icmp6-adm-prohibited", 6, "failed"),
        ("icmpv6 no-route", 6, "unreachable"),
        ("icmpx port-unreachable", 4, "refused"),
        ("icmp prot-unreachable", 4, "failed"),
    ],
)
def test_each_reject_has_its_errno(how: str, version: int, outcome: str) -> None:
    assert reject_outcome(how, version) == outcome
