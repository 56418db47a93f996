"""Examines routes, other networks, and connections from peers if hosts can't reach each other.

Often the data network works, but a wrong setting makes the job use the management network, which isolates the hosts
from each other. After unexplained connection failures, a few pairs of hosts therefore try to connect once over other
networks, on a port that the kernel chooses.

To detect proxies, each host binds a port without listening on it, and the preceding host dials that port. Regardless of
the load, the kernel refuses a connection to a port without a listener, whereas a proxy accepts the connection. Hosts
look for proxies only if they are pods, or if a connection was accepted but did not reach the listener.

To look up routes, nccl-doctor first queries the dialling host, whose answer contains the source address. In a second
query, both hosts report their routes to each other, and whether they accept the incoming packets.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Iterable, Mapping

from nccl_doctor.collect.facts.host_facts import look_up
from nccl_doctor.collect.mesh.dials import dial_targets, listening
from nccl_doctor.collect.mesh.plan import DialTarget, address_of, listener, on_link
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import Dialled, DialRow, Listening, MalformedError
from nccl_doctor.crew.parallel import ask_all
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.firewall.route_lookup import interface_of
from nccl_doctor.model.report import DialOutcome, FailedDial
from nccl_doctor.nccl.reachability import LOST
from nccl_doctor.snapshot.access import AnyAccessFailure, SshUnreachable
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Interception, Mesh
from nccl_doctor.snapshot.network import Interfaces, Way
from nccl_doctor.text.inet import numeric

PAIRS = 16  # hosts that one host tries
ADDRESSES = 4  # addresses of one host that another host tries
ANSWER_S = 5.0

# by host and its address, the hosts that reached its listener there
AlternativeAddresses = dict[str, dict[str, tuple[str, ...]]]


def find_other_nets(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], mesh: Mesh, failed: Iterable[FailedDial], dial_s: float
) -> AlternativeAddresses:
    """Return addresses on other networks at which hosts can be reached despite unexplained connection failures."""
    wanted = _wanted(facts, mesh, list(failed))
    if not wanted:
        return {}
    nonce = secrets.token_hex(16)
    ends = wanted.keys() | {dst for entry in wanted.values() for dst, _ in entry}
    concerned = [session for session in sessions if session.node.name in ends]
    with listening(concerned, nonce, lambda _session: [listener()]) as opened:
        ports = {name: entry.ports[0] for name, entry in opened.items() if isinstance(entry, Listening)}

        def meet(session: ProbeSession) -> list[tuple[str, str]]:
            pairs = [pair for pair in wanted.get(session.node.name, ()) if ports.get(pair[0])]
            targets = [DialTarget(dst, address, (ports[dst] or 0,)) for dst, address in pairs]
            lost = {row.target for row in dial_targets(session, targets, nonce, dial_s).failed}
            return [pair for place, pair in enumerate(pairs) if place not in lost]

        dialled = ask_all(meet, concerned)
    alternatives: dict[str, dict[str, list[str]]] = {}
    for session, connected in zip(concerned, dialled, strict=True):
        for dst, address in () if isinstance(connected, Exception) else connected:
            alternatives.setdefault(dst, {}).setdefault(address, []).append(session.node.name)
    return {dst: {address: tuple(sources) for address, sources in entry.items()} for dst, entry in alternatives.items()}


def _wanted(facts: dict[str, HostFacts], mesh: Mesh, failed: list[FailedDial]) -> dict[str, list[tuple[str, str]]]:
    """Return, for each host, other addresses of the hosts that it could not reach on any port."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for src, dst in dict.fromkeys((dial.src, dial.dst) for dial in failed if dial.src != dial.dst):
        mine = [dial for dial in mesh.failures.get((src, dst), ()) if dial.outcome in LOST]
        addresses = {dial.address for dial in mine}
        lost = {(dial.address, dial.port) for dial in mine}
        cut = any(all((address, port) in lost for port in mesh.ports.get(dst, ())) for address in addresses)
        if not cut or src not in facts or dst not in facts or len(wanted.get(src, ())) >= PAIRS * ADDRESSES:
            continue
        theirs = facts[dst].interfaces
        others = [e.address for e in theirs.addresses] if isinstance(theirs, Interfaces) else []
        fitting = [address for address in others if address not in addresses and on_link(facts[src], address)]
        if fitting:
            wanted.setdefault(src, []).extend((dst, address) for address in fitting[:ADDRESSES])
    return wanted


CLOSED_DIAL_S = 1.0
CLOSED = listener(mute=True)


def find_interceptions(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], mesh: Mesh, *, pods: bool
) -> tuple[Interception, ...]:
    if len(sessions) < 2 or not (pods or any(was_accepted(dial) for dial in mesh.failed)):
        return ()
    nonce = secrets.token_hex(16)

    after = dict(zip([session.node.name for session in sessions], [*sessions[1:], sessions[0]], strict=True))
    with listening(sessions, nonce, lambda _session: [CLOSED]) as held:

        def dial_closed(session: ProbeSession) -> Interception | None:
            other = after[session.node.name]
            port = answer.ports[0] if isinstance(answer := held[other.node.name], Listening) else None
            if port is None:
                return None
            target = DialTarget(other.node.name, address_of(other.node, facts[other.node.name]), (port,))
            outcome = dial_targets(session, [target], nonce, CLOSED_DIAL_S)
            if not outcome.connected and not any(map(was_accepted, outcome.failed)):
                return None
            return Interception(src=session.node.name, dst=target.dst, address=target.address, port=port)

        results = ask_all(dial_closed, sessions)
    return tuple(result for result in results if isinstance(result, Interception))


def was_accepted(dial: FailedDial | DialRow) -> bool:
    return dial.outcome in ("stranger", "intercepted", "reset") or dial.error == "SILENT"


AT_MOST = 64  # packets that a host is asked about: a few show a host that is cut off from all others
RoutedPacket = tuple[str, str | None, str | None]  # destination, source address, and incoming interface


def look_up_routes(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], failed: Iterable[FailedDial]
) -> dict[str, HostFacts]:
    pairs = list(dict.fromkeys((dial.src, dial.dst, dial.address) for dial in failed if numeric(dial.address)))
    out: dict[str, dict[RoutedPacket, None]] = {}
    for src, _, address in pairs:
        out.setdefault(src, {})[address, None, None] = None
    first = _ask(sessions, out)
    back: dict[str, dict[RoutedPacket, None]] = {}
    for src, dst, address in pairs:
        way = next((way for way in first.get(src, ()) if way.to == address), None)
        if way is None or way.prefers is None or way.dev is None or dst not in facts:
            continue
        # connect(2) looks up the route again once it has a source address: a rule may match on that
        back.setdefault(src, {})[address, way.prefers, None] = None
        back.setdefault(dst, {})[way.prefers, address, None] = None
        arrives = _between(facts[src], way.dev, facts[dst]) or interface_of(facts[dst], address)
        if arrives is not None:
            back[dst][address, way.prefers, arrives] = None
        home = interface_of(facts[src], way.prefers)
        returns = interface_of(facts[dst], address)
        if home is not None and returns is not None:
            back[src][way.prefers, address, _between(facts[dst], returns, facts[src]) or home] = None
    second = _ask(sessions, back)
    return {
        name: facts[name].model_copy(update={"ways": (*first.get(name, ()), *second.get(name, ()))})
        for name in first.keys() | second.keys()
        if name in facts
    }


def _ask(sessions: list[ProbeSession], wanted: dict[str, dict[RoutedPacket, None]]) -> dict[str, tuple[Way, ...]]:
    def ask(session: ProbeSession) -> tuple[Way, ...]:
        packets = list(wanted[session.node.name])[:AT_MOST]
        asked = [{"to": to, "source": source, "iif": iif} for to, source, iif in packets]
        ways = session.ask(answers.WAYS, time.monotonic() + ANSWER_S, packets=asked)
        if [(way.to, way.source, way.iif) for way in ways] != packets:
            raise session.gone(MalformedError("ways of packets that it was not asked about"))
        return ways

    concerned = [session for session in sessions if session.node.name in wanted]
    results = ask_all(ask, concerned)
    named = zip((session.node.name for session in concerned), results, strict=True)
    return {name: answer for name, answer in named if not isinstance(answer, Exception)}


def _between(sender: HostFacts, dev: str, receiver: HostFacts) -> str | None:
    """Return the receiver's interface that shares a network with the sender's interface, or None if there is none."""
    if not isinstance(sender.interfaces, Interfaces) or not isinstance(receiver.interfaces, Interfaces):
        return None
    nets = [
        ipaddress.ip_network(f"{entry.address}/{entry.netmask}", strict=False)
        for entry in sender.interfaces.addresses
        if entry.interface.partition(":")[0] == dev and entry.family == "inet" and entry.netmask is not None
    ]
    for entry in receiver.interfaces.addresses:
        if entry.family == "inet" and any(ipaddress.ip_address(entry.address) in net for net in nets):
            return entry.interface.partition(":")[0]
    return None


PEERS = 2  # hosts that look up routes
TARGETS = 64  # addresses that each of them looks up
PEER_DIAL_S = 2.0
NAMES_S = 2.0
PEER_ANSWER_S = 3.0
TAKES_S = NAMES_S + 2 * PEER_DIAL_S + PEER_ANSWER_S
"""Time limit in seconds for querying the peers.

A query can wait twice for a silent listener.
"""
WORTH_ASKING = ("timed-out", "no-route", "unreachable", "refused")  # if nothing on the host itself explains it
LOOKS: tuple[DialOutcome, ...] = (
    "stranger", "intercepted", "reset", "refused", "timed-out", "no-route", "unreachable",
)  # fmt: skip
"""Results of connection attempts that reveal something about the dialled host, the most informative result first.

If a host has several addresses, only the most informative result is used. Other results reveal nothing about the
dialled host; for example, the peer might have failed to open a socket.
"""


def ask_reachability_from_peers(
    sessions: list[ProbeSession], failures: Mapping[str, AnyAccessFailure], until: float
) -> dict[str, SshUnreachable]:
    """Have up to two peers dial unreachable hosts before ``until``, and return the failures with the results added."""
    latest = time.monotonic() + TAKES_S
    chosen = [session for session in sessions if not session.node.local][:PEERS]
    lost = {
        name: failure
        for name, failure in failures.items()
        if isinstance(failure, SshUnreachable)
        and failure.facts.reason in WORTH_ASKING
        and failure.facts.jump_host is None
    }
    places = _resolve(lost)[:TARGETS] if chosen and latest <= until else []
    if not places:
        return {}
    nonce = secrets.token_hex(16)
    targets = [DialTarget(name, address, (lost[name].facts.port,)) for name, address in places]

    def look(session: ProbeSession) -> Dialled:
        return dial_targets(session, targets, nonce, PEER_DIAL_S, latest)

    outcomes: dict[str, dict[str, DialOutcome]] = {}
    for session, answer in zip(chosen, ask_all(look, chosen), strict=True):
        rows = () if isinstance(answer, Exception) else answer.failed
        # an accepted connection without an answer shows nothing about the host
        looks = (row for row in rows if row.outcome in LOOKS and row.error != "SILENT")
        for row in sorted(looks, key=lambda row: LOOKS.index(row.outcome)):
            outcomes.setdefault(places[row.target][0], {}).setdefault(session.node.name, row.outcome)
    return {
        name: lost[name].model_copy(update={"facts": lost[name].facts.model_copy(update={"others": others})})
        for name, others in outcomes.items()
    }


def _resolve(lost: Mapping[str, SshUnreachable]) -> list[tuple[str, str]]:
    """Return pairs of a host and an address to which this machine resolves the host's name.

    Loopback addresses (forwarded ports) and link-local addresses are left out.
    """
    if not lost:
        return []
    known, _ = look_up((failure.facts.address for failure in lost.values()), NAMES_S)
    pairs = []
    for name, failure in lost.items():
        for text in known.get(failure.facts.address, (failure.facts.address,)):
            address = numeric(text)
            if address and not (address.is_loopback or address.is_link_local or address.is_unspecified):
                pairs.append((name, text))
    return pairs
