"""Two real probes on loopback dial each other."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nccl_doctor.collect.facts.host_facts import Asking, FactLimits
from nccl_doctor.collect.mesh.failed_dials import CLOSED, find_interceptions
from nccl_doctor.collect.mesh.mesh import MeshLimits, _trips, disputes, run_mesh
from nccl_doctor.collect.mesh.plan import DialTarget
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import Dialled, Heard, NoAnswerError, TripRow
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.base import known
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.report import FailedDial
from nccl_doctor.probe.mesh.mesh import MOST_PER_PEER, MeshEnd
from nccl_doctor.snapshot.hosts import HostFacts, Snapshot
from nccl_doctor.snapshot.mesh import Trips, accused
from nccl_doctor.transport.process import LocalTransport
from tests.checks.snapshots import healthy
from tests.collect.nodes import node
from tests.patience import LONG_S, crowd, joined

ANY = {"address": "127.0.0.1", "port": 0, "step": 0, "tries": 1}
LIMITS = MeshLimits(dial_s=2 * crowd())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def cluster() -> Cluster:
    nodes = (node(name="a", rank=0), node(name="b", rank=1))
    return Cluster(nodes=nodes, master_addr="127.0.0.1", master_port=free_port())


@pytest.fixture
def sessions(cluster: Cluster) -> Iterator[list[ProbeSession]]:
    sessions = [ProbeSession.open(LocalTransport(), n, time.monotonic() + LONG_S, 300) for n in cluster.nodes]
    yield sessions
    for session in sessions:
        session.close()


def gather(sessions: list[ProbeSession], cluster: Cluster) -> dict[str, HostFacts]:
    asking = Asking(cluster, FactLimits(timeout_s=60), math.inf)
    for session in sessions:
        with contextlib.suppress(NoAnswerError):  # a fact that this machine is too busy for
            asking(session, 1.0)
    return asking.all()


def test_all_dial_all_and_only_the_master_listens_on_the_master_port(
    sessions: list[ProbeSession], cluster: Cluster
) -> None:
    result = run_mesh(sessions, gather(sessions, cluster), cluster, LIMITS, lambda _session: None)
    assert (result.hosts, result.pairs, result.tested, result.failed) == (2, 2, 2, ())
    assert cluster.master_port in result.ports["a"]
    assert cluster.master_port not in result.ports["b"]
    assert len(set(result.ports["a"]) - {cluster.master_port}) in (2, 3)  # another program may hold one of the three
    assert len(result.ports["b"]) in (2, 3)
    assert {name: {*met.values()} for name, met in result.answered.items()} == {"a": {("b",)}, "b": {("a",)}}
    assert result.among({"a"}).answered == {"a": dict.fromkeys(result.answered["a"], ())}


def test_the_listeners_are_gone_afterwards_and_leave_no_time_wait(
    sessions: list[ProbeSession], cluster: Cluster
) -> None:
    result = run_mesh(sessions, gather(sessions, cluster), cluster, LIMITS, lambda _session: None)
    for port in [port for ports in result.ports.values() for port in ports]:
        with socket.socket() as sock:
            sock.bind(("0.0.0.0", port))  # without SO_REUSEADDR: a TIME_WAIT would refuse it


def test_a_port_that_somebody_holds_is_never_dialled(sessions: list[ProbeSession], cluster: Cluster) -> None:
    visits = []
    with socket.create_server(("127.0.0.1", cluster.master_port)) as server:
        server.settimeout(0.2)
        done = threading.Event()

        def count() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                visits.append(connection)
                connection.close()

        counter = threading.Thread(target=count)
        counter.start()
        result = run_mesh(sessions, gather(sessions, cluster), cluster, LIMITS, lambda _session: None)
        done.set()
        joined(counter)
    assert cluster.master_port not in result.ports["a"]
    assert result.failed == ()
    assert visits == []


def test_outcomes_are_told_apart(sessions: list[ProbeSession]) -> None:
    sessions[0].ask(answers.LISTEN, time.monotonic() + LONG_S, nonce="ours", sockets=[ANY])
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

        greeter = threading.Thread(target=greet)
        greeter.start()
        ports = [silent.getsockname()[1], other.getsockname()[1], free_port()]
        answer = sessions[0].ask(
            answers.DIAL, time.monotonic() + LONG_S, targets=[["127.0.0.1", ports, "ours"]], timeout_s=0.5
        )
        joined(greeter)
    assert [(row.port, row.outcome) for row in answer.failed] == list(
        zip(ports, ["timed-out", "stranger", "refused"], strict=True)
    )
    late, _, refused = (row.seconds or 0.0 for row in answer.failed)
    assert late >= 0.5
    assert refused > 0.0


def test_who_waits_for_the_first_words_is_a_proxy(sessions: list[ProbeSession]) -> None:
    """It took the connection, and our own nonce comes only once it was spoken to; who says nothing even then is late."""
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as silent:

        def pass_on() -> None:
            connection, _ = proxy.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"ours")

        passing = threading.Thread(target=pass_on)
        passing.start()
        ports = [proxy.getsockname()[1], silent.getsockname()[1]]
        deadline = time.monotonic() + LONG_S
        targets = [["127.0.0.1", ports, "ours"]]
        sessions[0].ask(answers.LISTEN, deadline, nonce="ours", sockets=[ANY])
        answer = sessions[0].ask(answers.DIAL, deadline, targets=targets, timeout_s=0.5)
        joined(passing)
    assert [(outcome, error) for _, _, outcome, error, *_ in answer.failed] == [
        ("intercepted", None),
        ("timed-out", "SILENT"),
    ]


def test_a_port_that_is_held_closed_refuses_whoever_dials_it(sessions: list[ProbeSession], cluster: Cluster) -> None:
    facts = gather(sessions, cluster)
    result = run_mesh(sessions, facts, cluster, LIMITS, lambda _session: None)
    assert find_interceptions(sessions, facts, result, pods=True) == ()
    deadline = time.monotonic() + LONG_S
    (port,) = sessions[0].ask(answers.LISTEN, deadline, nonce="ours", sockets=[CLOSED]).ports
    sessions[1].ask(answers.LISTEN, deadline, nonce="ours", sockets=[ANY])
    answer = sessions[1].ask(answers.DIAL, deadline, targets=[["127.0.0.1", [port], "ours"]], timeout_s=2)
    assert [row.outcome for row in answer.failed] == ["refused"]


def test_the_dialling_host_itself_is_a_stranger(sessions: list[ProbeSession]) -> None:
    """As behind docker0's address, which every host has."""
    deadline = time.monotonic() + LONG_S
    (port,) = sessions[0].ask(answers.LISTEN, deadline, nonce="mine", sockets=[ANY]).ports
    answer = sessions[0].ask(answers.DIAL, deadline, targets=[["127.0.0.1", [port], "yours"]], timeout_s=2)
    assert answer.failed[0].outcome == "stranger"


def test_a_listener_takes_what_is_sent(sessions: list[ProbeSession]) -> None:
    deadline = time.monotonic() + LONG_S
    (port,) = sessions[0].ask(answers.LISTEN, deadline, nonce="ours", sockets=[ANY]).ports
    (answer,) = sessions[1].ask(answers.PATH_MTU, deadline, segment=None, targets=[["127.0.0.1", port]], deadline_s=2)
    assert (answer.outcome, answer.unacked) == ("passed", 0)


def test_a_name_is_resolved(sessions: list[ProbeSession]) -> None:
    deadline = time.monotonic() + LONG_S
    (port,) = sessions[0].ask(answers.LISTEN, deadline, nonce="ours", sockets=[{**ANY, "address": ""}]).ports
    answer = sessions[0].ask(answers.DIAL, deadline, targets=[["localhost", [port], "ours"]], timeout_s=5)
    assert (answer.connected, answer.failed) == (1, ())


def test_a_name_that_does_not_resolve_is_no_timeout(sessions: list[ProbeSession]) -> None:
    sessions[0].ask(answers.LISTEN, time.monotonic() + LONG_S, nonce="ours", sockets=[])
    answer = sessions[0].ask(
        answers.DIAL, time.monotonic() + LONG_S, targets=[["nowhere.invalid", [9], "ours"]], timeout_s=5
    )
    assert answer.failed[0].outcome == "failed"


@pytest.fixture
def store() -> Any:
    """torch's TCPStore, which takes seconds to load, during which this process does nothing else."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented there

    return TCPStore


def test_a_listener_on_ipv6s_loopback_leaves_the_port_to_ours_as_to_torchs(
    store: Any, sessions: list[ProbeSession]
) -> None:
    """``ssh -L`` leaves one; torch's TCPStore then listens on 0.0.0.0."""
    with socket.socket(socket.AF_INET6) as tunnel:
        tunnel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tunnel.bind(("::1", 0))
        tunnel.listen()
        port = tunnel.getsockname()[1]
        wanted = {"address": "", "port": port, "step": 0, "tries": 1}
        witness = store("127.0.0.1", port, is_master=True, wait_for_workers=False)
        assert witness.port == port
        del witness
        deadline = time.monotonic() + LONG_S
        told = sessions[0].ask(answers.LISTEN, deadline, nonce="ours", sockets=[wanted])
        targets = [["127.0.0.1", [port], "ours"]]
        answer = sessions[0].ask(answers.DIAL, deadline, targets=targets, timeout_s=20)
    assert list(told.ports) == [port]
    assert answer.connected == 1


HEALTHY = {host.name: host.facts for host in Snapshot.model_validate(healthy()).hosts if host.facts}


def own(name: str) -> str:
    """An address that this host alone has."""
    return next(one.address for one in known(HEALTHY[name].interfaces).addresses if one.interface == "eno1")


def dial(src: str, dst: str, outcome: str = "timed-out", **more: Any) -> FailedDial:
    ends = {"src": src, "dst": dst, "address": own(dst)}
    return FailedDial.model_validate({**ends, "port": 29500, "outcome": outcome, **more})


def accepted(dst: str, src: str, port: int = 29500) -> dict[str, Heard]:
    ends = [own(name) for name in (dst, src)]
    return {dst: Heard.model_validate({"accepted": [[ends[0], port, ends[1], 1]]})}


@pytest.mark.parametrize(
    ("failed", "heard", "is_disputed"),
    [
        (dial("node2", "node1"), accepted("node1", "node2"), True),
        (dial("node2", "node1", "refused"), accepted("node1", "node2"), True),
        (dial("node2", "node1"), accepted("node1", "node3"), False),
        (dial("node2", "node1"), accepted("node1", "node2", 40000), False),
        (dial("node2", "node1", "stranger"), accepted("node1", "node2"), False),
        (dial("node2", "node1", error="SILENT"), accepted("node1", "node2"), False),
        (dial("node2", "node1"), {}, False),
    ],
)
def test_a_dial_is_disputed_where_the_dialled_host_accepted_it(
    failed: FailedDial, heard: dict[str, Heard], *, is_disputed: bool
) -> None:
    assert bool(disputes([failed], HEALTHY, heard)) is is_disputed


@pytest.mark.parametrize(
    ("hosts", "pairs", "found"),
    [
        (("node1",), [("node2", "node1")], ("node2",)),
        (("node1",), [("node2", "node1"), ("node3", "node1")], ("node1",)),
        (("node1",), [("node1", "node2")], ("node1",)),
        (("node1", "node2"), [("node1", "node2"), ("node2", "node1")], ("node1", "node2")),
        (("node1", "node2"), [("node2", "node1")], ("node2",)),
    ],
)
def test_one_hosts_word_accuses_no_other(
    hosts: tuple[str, ...], pairs: list[tuple[str, str]], found: tuple[str, ...]
) -> None:
    assert accused(hosts, pairs) == found


def test_idle_connections_of_one_host_are_bounded_and_others_come_through() -> None:
    """The oldest of this host's go first, by whichever of its addresses they came."""
    end = MeshEnd("nonce")
    (port,) = end.listen([ANY])["ports"]
    crowd = [socket.create_connection(("127.0.0.1", port), LONG_S) for _ in range(MOST_PER_PEER + 20)]
    try:
        for one in crowd:
            one.settimeout(LONG_S)
            assert one.recv(5) == b"nonce"
        for one in crowd[:20]:  # hung up on
            with pytest.raises(ConnectionResetError):
                one.recv(1)
        heard = end.close()
        assert heard["accepted"] == [["127.0.0.1", port, "127.0.0.1", MOST_PER_PEER + 20]]
        assert heard["crowds"] == [["127.0.0.1", 20]]
    finally:
        for one in crowd:
            one.close()


def test_a_pair_that_is_dialled_at_two_addresses_is_one_pair() -> None:
    targets = {
        "node1": [DialTarget("node2", "10.0.0.2", (40001,))],
        "node2": [DialTarget("node1", "10.0.0.1", (40001,)), DialTarget("node1", "node1.local", (29500,))],
    }
    dialled: list[Dialled | Exception] = [
        Dialled(connected=1, failed=(), trips=(TripRow(0, 90, 1),)),
        Dialled(connected=2, failed=(), trips=(TripRow(0, 70, 0), TripRow(1, 50, 0))),
    ]
    trips = _trips(["node1", "node2"], targets, dialled)
    assert trips["node1"] == trips["node2"] == Trips(pairs=2, shortest_us=50, usual_us=70, again=1)
