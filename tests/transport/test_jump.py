"""Hosts behind jump hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_doctor.crew.parallel import HostReach
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.transport.base import Transport
from nccl_doctor.transport.ssh.session import SshSession
from nccl_doctor.transport.ssh.settings import split_jump
from tests.lab.warm import plain
from tests.patience import LONG_S, crowd
from tests.transport.conftest import Make, failure, run
from tests.transport.servers import LOOPBACK, Controller, Sshd, free_port, misbehaving, public, sshd

pytestmark = pytest.mark.slow

KINDS: tuple[TransportKind, ...] = ("paramiko", "openssh")


@dataclass(frozen=True)
class Route:
    jump: Sshd
    server: Sshd
    controller: Controller

    def host(self, name: str = "inner") -> Node:
        return Node(name=name, address=name, node_rank=0)

    def configure(self, jumps: str = "jump", port: int | None = None) -> None:
        self.controller.configure(
            f"Host jump*\n  HostName {LOOPBACK}\n  Port {self.jump.port}\n"
            f"Host inner*\n  HostName {LOOPBACK}\n  Port {port or self.server.port}\n  ProxyJump {jumps}\n"
        )


@pytest.fixture(scope="session")
def jump(keys: Path) -> Iterator[Sshd]:
    with sshd(keys, (keys / "host_ecdsa",)) as running:
        yield running


@pytest.fixture
def route(jump: Sshd, server: Sshd, controller: Controller) -> Route:
    controller.know(jump.known(), server.known())
    return Route(jump, server, controller)


@pytest.fixture(params=KINDS)
def transport(request: pytest.FixtureRequest, make: Make) -> Transport:
    return make(request.param)


@pytest.mark.parametrize("jumps", ["jump", "jump1,jump2"])
def test_through_jump_hosts(transport: Transport, route: Route, jumps: str) -> None:
    route.configure(jumps)
    assert run(transport, route.host(), "cat & wait; echo in", seconds=LONG_S)[-1] == b"in"


def test_one_connection_for_many_hosts(make: Make, route: Route) -> None:
    route.configure()
    before = route.jump.log.read_text().count("Accepted publickey")
    transport = make("paramiko")
    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda n: run(transport, route.host(f"inner{n}"), "echo in", seconds=LONG_S), range(12))
        assert list(answers) == [[b"in"]] * 12
    assert route.jump.log.read_text().count("Accepted publickey") - before == 1


def test_who_is_tried_again_comes_by_a_connection_of_its_own(make: Make, route: Route, keys: Path) -> None:
    """The first to the jump host stands still once it is made: no host behind it is to blame, nor is its neighbour."""
    with sshd(keys, (keys / "host_ecdsa",)) as jump:
        route.controller.know(jump.known(), route.server.known())
        Route(jump, route.server, route.controller).configure()
        transport = make("paramiko")
        assert run(transport, route.host("inner1"), "echo in", seconds=LONG_S) == [b"in"]
        (first,) = jump.connections()
        first.suspend()
        try:
            assert failure(transport, route.host("inner2"), 1.0).facts.ran_out_of_time
            with ThreadPoolExecutor(2) as pool:
                again = pool.map(lambda n: run(transport, route.host(f"inner{n}"), "echo in", seconds=LONG_S), (1, 2))
                assert list(again) == [[b"in"]] * 2
            assert jump.log.read_text().count("Accepted publickey") == 2
        finally:
            first.resume()


def test_a_jump_host_that_was_late_is_asked_again(make: Make, route: Route, tmp_path: Path) -> None:
    route.configure()
    asked = tmp_path / "asked"
    late = f"test -e {asked} && exec nc {LOOPBACK} {route.jump.port}; touch {asked}; exec sleep 600"
    route.controller.configure(f"Host jump\n  ProxyCommand sh -c '{late}'\n")
    transport = make("paramiko")
    assert failure(transport, route.host(), 1.0).facts.jump_host == "jump"
    assert run(transport, route.host(), "echo in", seconds=LONG_S) == [b"in"]


def test_unknown_key_of_the_jump_host(transport: Transport, route: Route) -> None:
    route.configure()
    route.controller.know(route.server.known())
    found = failure(transport, route.host())
    assert found.kind == "ssh-host-key-unknown"
    assert (found.facts.jump_host, found.facts.port) == ("jump", route.jump.port)
    assert found.facts.via is False


def test_unknown_key_behind_the_jump_host(transport: Transport, route: Route) -> None:
    route.configure()
    route.controller.know(route.jump.known())
    found = failure(transport, route.host())
    assert found.kind == "ssh-host-key-unknown"
    assert "jump_host" not in found.facts
    assert found.facts.via is True


def test_the_line_for_a_key_behind_a_jump_host(make: Make, route: Route) -> None:
    route.configure()
    route.controller.know(route.jump.known())
    found = failure(make("paramiko"), route.host())
    assert found.facts.known_hosts_line == f"{route.server.name} {public(route.server.host_keys[0])}"


def test_jump_host_that_is_away(transport: Transport, route: Route) -> None:
    route.configure()
    port = free_port()
    route.controller.configure(f"Host jump\n  Port {port}\n")
    found = failure(transport, route.host())
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "refused")
    assert (found.facts.jump_host, found.facts.port) == ("jump", port)


def test_jump_host_that_lets_nobody_in(transport: Transport, route: Route, keys: Path) -> None:
    route.configure()
    route.controller.configure(f"Host jump\n  IdentityFile {keys / 'other'}\n  IdentitiesOnly yes\n")
    text = route.controller.config.read_text()
    route.controller.config.write_text(text.replace(f"IdentityFile {keys / 'id'}", f"IdentityFile {keys / 'other'}"))
    found = failure(transport, route.host())
    assert (found.kind, found.facts.jump_host) == ("ssh-auth-failed", "jump")


def test_nobody_listens_behind_the_jump_host(transport: Transport, route: Route) -> None:
    route.configure(port=free_port())
    found = failure(transport, route.host())
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "refused")
    assert "jump_host" not in found.facts


def test_jump_host_without_forwarding(transport: Transport, route: Route, keys: Path) -> None:
    with sshd(keys, (keys / "host_ecdsa",), "AllowTcpForwarding no") as shut:
        route.controller.know(shut.known(), route.server.known())
        Route(shut, route.server, route.controller).configure()
        found = failure(transport, route.host())
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "forwarding")


def test_each_thread_is_told_its_own_failure_behind_one_jump_host(
    make: Make, route: Route, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the jump host's refusals have come before the first of them is read; a healthy host stands beside them."""
    shut, nowhere = free_port(), "nosuch..example"  # an empty label: no name server is asked
    allowed = f"PermitOpen {LOOPBACK}:{route.server.port} {LOOPBACK}:{shut} {nowhere}:22"
    wanted = {
        "refused": ("refused", "Connection refused"),
        "nameless": ("name-unresolved", "Name or service not known"),
        "barred": ("forwarding", "open failed"),
    }
    together = threading.Barrier(2 * len(wanted))
    own = SshSession.get_exception

    def once_all_have_come(session: SshSession) -> Exception | None:
        together.wait(LONG_S)
        return own(session)

    monkeypatch.setattr(SshSession, "get_exception", once_all_have_come)
    with sshd(keys, (keys / "host_ecdsa",), allowed) as jump, ThreadPoolExecutor(2 * together.parties) as pool:
        route.controller.know(jump.known(), route.server.known())
        Route(jump, route.server, route.controller).configure()
        route.controller.configure(
            f"Host refused* barred*\n  HostName {LOOPBACK}\n"
            f"Host refused*\n  Port {shut}\nHost barred*\n  Port {free_port()}\n"
            f"Host nameless*\n  HostName {nowhere}\nHost refused* barred* nameless*\n  ProxyJump jump\n"
        )
        transport = make("paramiko")
        assert run(transport, route.host(), "echo in", seconds=LONG_S) == [b"in"]
        for turn in range(5):
            hosts = [f"{kind}{turn}{number}" for number in range(2) for kind in wanted]
            found = {host: pool.submit(failure, transport, route.host(host), LONG_S) for host in hosts}
            healthy = pool.submit(run, transport, route.host(f"inner{turn}"), "echo in", seconds=LONG_S)
            assert healthy.result() == [b"in"]
            for host, told in found.items():
                reason, words = wanted[host.rstrip("0123456789")]
                assert (told.result().facts.reason, words in told.result().evidence[0]) == (reason, True), host


def test_jump_hosts_in_a_circle(transport: Transport, controller: Controller) -> None:
    """The ssh program starts one process after another here, without end."""
    controller.configure("Host a\n  ProxyJump b\nHost *\n  ProxyJump a\n")
    found = failure(transport, Node(name="inner", address="inner", node_rank=0), seconds=5.0)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "ssh-config")


def test_the_deadline_holds_for_all_that_wait_for_a_jump_host(make: Make, route: Route) -> None:
    route.configure()
    route.controller.configure("Host jump\n  ProxyCommand sleep 60\n")
    transport = make("paramiko")
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: failure(transport, route.host(f"inner{n}"), seconds=1.0), range(4)))
    assert time.monotonic() - started < 4.0 * crowd()
    assert {(one.kind, one.facts.jump_host) for one in found} == {("ssh-unreachable", "jump")}


def test_waiting_for_a_turn_at_the_jump_host_is_no_time_of_the_host(make: Make, route: Route) -> None:
    """Eight silent hosts hold every place for all of their time; the others wait that long before theirs begins."""
    with misbehaving(lambda _: None) as silent:
        route.configure(port=silent)
        transport = make("paramiko")
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda n: failure(transport, route.host(f"inner{n}"), seconds=1.0), range(12)))
    assert not any("turn" in one.detail for one in found)


def test_max_startups_on_the_jump_host_and_behind_it(transport: Transport, route: Route, keys: Path) -> None:
    """sshd's default drops connections at random from the eleventh unfinished handshake on."""
    startups = "MaxStartups 10:30:100"
    with sshd(keys, (keys / "host_ecdsa",), startups) as jump, sshd(keys, (keys / "host_ed25519",), startups) as server:
        route.controller.know(jump.known(), server.known())
        Route(jump, server, route.controller).configure()
        reach = HostReach(transport, LONG_S, time.monotonic() + 2 * LONG_S, lambda _: None)
        hosts = [Node(name=f"inner{n}", address=f"inner{n}", node_rank=n, python=plain()) for n in range(24)]
        load = reach.all(hosts)
        for session in reach.opened.values():
            session.close()
    assert (reach.failures, load.second_try) == ({}, ())


@pytest.mark.parametrize(
    ("jumps", "wanted"),
    [
        ("a", ("", "a", SshOptions())),
        ("x,ops@b:2222", ("x", "b", SshOptions(user="ops", port=2222))),
        ("ssh://ops@b:2222", ("", "b", SshOptions(user="ops", port=2222))),
        ("u@[fe80::1]:23", ("", "fe80::1", SshOptions(user="u", port=23))),
        ("fe80::1", ("", "fe80::1", SshOptions())),
    ],
)
def test_split_jump(jumps: str, wanted: tuple[str, str, SshOptions]) -> None:
    assert split_jump(jumps) == wanted
