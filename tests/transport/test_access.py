"""What becomes of hosts that can't be reached, by either way of connecting."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nccl_doctor.errors import ControllerError
from nccl_doctor.model.cluster import Node, access
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.transport.base import Transport
from nccl_doctor.transport.ssh import identities
from nccl_doctor.transport.ssh.config import account
from nccl_doctor.transport.ssh.openssh import OpensshTransport
from tests.patience import LONG_S, crowd, joined
from tests.transport.conftest import Make, failure, run
from tests.transport.servers import (
    LOOPBACK,
    Controller,
    Sshd,
    fingerprint,
    free_port,
    keygen,
    misbehaving,
    node,
    public,
    sshd,
)

pytestmark = pytest.mark.slow

KINDS: tuple[TransportKind, ...] = ("paramiko", "openssh")


@pytest.fixture(params=KINDS)
def transport(request: pytest.FixtureRequest, make: Make) -> Transport:
    return make(request.param)


def test_unknown_host_key(transport: Transport, server: Sshd, controller: Controller) -> None:
    found = failure(transport, node(server.port))
    assert found.kind == "ssh-host-key-unknown"
    wanted = {
        "address": LOOPBACK,
        "port": server.port,
        "key_type": "ssh-ed25519",
        "fingerprint": fingerprint(server.host_keys[0]),
        "known_hosts": str(controller.known_hosts),
        "via": False,
    }
    facts = found.facts.model_dump()
    assert facts | wanted == facts
    assert controller.known_hosts.read_text() == "", "never written"


def test_changed_host_key(transport: Transport, server: Sshd, controller: Controller, keys: Path) -> None:
    controller.know("# a comment\n", "other.example ssh-ed25519 AAAA\n", server.known(keys / "other"))
    found = failure(transport, node(server.port))
    assert found.kind == "ssh-host-key-changed"
    assert found.detail == f"presented a different host key from the one in {controller.known_hosts}:3"
    assert found.facts.fingerprint == fingerprint(server.host_keys[0])
    assert (found.facts.file, found.facts.line) == (str(controller.known_hosts), 3)


def test_changed_host_key_names_the_old_one(make: Make, server: Sshd, controller: Controller, keys: Path) -> None:
    controller.know(server.known(keys / "other"))
    assert failure(make("paramiko"), node(server.port)).facts.known_fingerprint == fingerprint(keys / "other")


def test_revoked_host_key(transport: Transport, server: Sshd, controller: Controller) -> None:
    controller.know(server.known(), f"@revoked * {public(server.host_keys[0])}\n")
    found = failure(transport, node(server.port))
    assert (found.kind, found.facts.revoked) == ("ssh-host-key-changed", True)


def test_hashed_known_hosts(transport: Transport, server: Sshd, controller: Controller) -> None:
    controller.know("elsewhere ssh-ed25519 AAAA\n", server.known())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(controller.known_hosts)], check=True, capture_output=True)
    assert LOOPBACK not in controller.known_hosts.read_text()
    assert run(transport, node(server.port), "echo in") == [b"in"]


def test_the_known_one_of_several_host_keys_is_asked_for(
    transport: Transport, controller: Controller, keys: Path
) -> None:
    host_keys = (keys / "host_ed25519", keys / "host_ecdsa", keys / "host_rsa")
    with sshd(keys, host_keys) as running:
        for key in host_keys:
            controller.know(running.known(key))
            fresh = type(transport)(*_arguments(transport))
            assert run(fresh, node(running.port), "echo in") == [b"in"]
            fresh.close()


def _arguments(transport: Transport) -> tuple[object, ...]:
    return transport._kind, transport._config  # type: ignore[attr-defined]  # of the transport under test


def test_refused_key(transport: Transport, server: Sshd, controller: Controller, keys: Path) -> None:
    controller.know(server.known())
    controller.config.write_text(controller.config.read_text().replace(str(keys / "id"), str(keys / "other")))
    found = failure(transport, node(server.port))
    assert found.kind == "ssh-auth-failed"
    assert found.facts.methods == ("publickey",)
    assert found.facts.offered == 1
    assert found.facts.identity_file == str(keys / "other")
    assert str(keys / "other") in found.evidence[0]
    assert fingerprint(keys / "other") in found.evidence[0]


def test_encrypted_key_is_passed_over(transport: Transport, controller: Controller, keys: Path) -> None:
    controller.config.write_text(controller.config.read_text().replace(str(keys / "id"), str(keys / "locked")))
    with sshd(keys, (keys / "host_ed25519",), f"AuthorizedKeysFile {keys / 'locked.pub'}") as running:
        controller.know(running.known())
        found = failure(transport, node(running.port))
    assert (found.facts.encrypted, found.facts.offered) == ((str(keys / "locked"),), 0)


def test_auto(make: Make, server: Sshd, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ssh program takes part where paramiko can do it."""
    controller.know(server.known())
    transport = make("auto")
    monkeypatch.setattr(OpensshTransport, "open", lambda *_: pytest.fail("used the ssh program"))
    assert run(transport, node(server.port), "echo in") == [b"in"]


def test_agent(make: Make, server: Sshd, controller: Controller, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.know(server.known())
    controller.config.write_text(controller.config.read_text().replace(str(keys / "id"), str(keys / "locked")))
    path = controller.home / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LONG_S
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        subprocess.run(["ssh-add", "-q", str(keys / "id")], check=True, stdin=subprocess.DEVNULL)
        assert run(make("paramiko"), node(server.port), "echo in") == [b"in"]
    finally:
        agent.terminate()
        agent.wait(LONG_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("configured", [False, True])
def test_a_hung_agent_is_named_and_accuses_no_host(
    make: Make,
    server: Sshd,
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    kind: TransportKind,
    configured: bool,
) -> None:
    """Nor is it waited for again at the next host; one that hangs so long that nobody is let in counts, too."""
    monkeypatch.setattr(identities, "AGENT_S", 0.2)
    controller.know(server.known())
    path = controller.home / "agent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        if configured:
            controller.config.write_text(f"{controller.config.read_text()}  IdentityAgent {path}\n")
        else:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        transport, began = make(kind), time.monotonic()
        for _ in range(3):
            with pytest.raises(ControllerError) as caught:
                transport.open(node(server.port), "true", time.monotonic() + LONG_S)
        with pytest.raises(ControllerError):  # its queue is full by now
            make(kind).open(node(server.port), "true", time.monotonic() + LONG_S)
        assert time.monotonic() - began < 10 * crowd()
    way = "IdentityAgent none there" if configured else "env -u SSH_AUTH_SOCK nccl-doctor"
    assert str(caught.value).startswith(f"the ssh-agent at {path} (")
    assert str(caught.value).endswith(f"by key files alone: {way}" + ("" if configured else " ..."))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    if not configured:
        assert run(make(kind), node(server.port), "echo in") == [b"in"]


def test_an_agent_that_is_gone_is_no_agent(
    make: Make, server: Sshd, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.know(server.known())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(controller.home / "agent"))
    for path in (controller.home / "agent", controller.home / "nowhere", "/" + "long" * 50):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert run(make("paramiko"), node(server.port), "echo in") == [b"in"]


def test_explicit_identity_file(transport: Transport, server: Sshd, controller: Controller, keys: Path) -> None:
    controller.know(server.known())
    controller.config.write_text(controller.config.read_text().replace(str(keys / "id"), str(keys / "nowhere")))
    host = Node(
        name="n",
        address=LOOPBACK,
        node_rank=0,
        access=access(SshOptions(port=server.port, identity_file=str(keys / "id"))),
    )
    assert run(transport, host, "echo in") == [b"in"]


def test_options_as_an_inventory_gives_them(
    transport: Transport, server: Sshd, controller: Controller, keys: Path
) -> None:
    controller.know(server.known())
    controller.config.write_text(controller.config.read_text().replace(str(keys / "id"), str(keys / "nowhere")))
    options = SshOptions(options=(f"Port={server.port}", f"IdentityFile={keys / 'id'}", f"HostName={LOOPBACK}"))
    host = Node(name="n", address="somewhere", node_rank=0, access=access(options))
    assert run(transport, host, "echo in") == [b"in"]


def test_nobody_listens(transport: Transport) -> None:
    found = failure(transport, node(free_port()))
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "refused")


def test_name_that_does_not_resolve(transport: Transport) -> None:
    found = failure(transport, node(22, address="nowhere.invalid"))
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "name-unresolved")


def test_silent_server(transport: Transport) -> None:
    with misbehaving(lambda _: None) as port:
        found = failure(transport, node(port), seconds=1.5)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "no-banner")


def test_silent_after_the_greeting(transport: Transport) -> None:
    with misbehaving(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        found = failure(transport, node(port), seconds=1.5)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "stalled")
    assert found.detail.startswith("answered but did not finish")


def test_dropped_before_the_greeting(transport: Transport) -> None:
    def drop(connection: socket.socket) -> None:
        connection.sendall(b"Exceeded MaxStartups\r\n")
        connection.close()

    with misbehaving(drop) as port:
        found = failure(transport, node(port), seconds=2.0)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "dropped")
    assert "MaxStartups" in found.detail


def test_dropped_without_a_word_names_no_reason(transport: Transport) -> None:
    """As sshd does that can't start a session, such as without /run/sshd."""
    with misbehaving(socket.socket.close) as port:
        found = failure(transport, node(port), seconds=2.0)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "dropped")
    assert "MaxStartups" not in found.detail
    assert "without saying why" in found.detail


def test_dropped_twice_and_then_served(transport: Transport, server: Sshd, controller: Controller) -> None:
    served: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        served.append(threading.Thread(target=_relay if len(served) == 2 else _hang_up, args=(connection, server.port)))
        served[-1].start()

    with misbehaving(answer) as port:
        controller.know(f"[{LOOPBACK}]:{port} {public(server.host_keys[0])}\n")
        assert run(transport, node(port), "echo in") == [b"in"]
    for thread in served:
        joined(thread)
    assert len(served) == 3


def _hang_up(connection: socket.socket, _: int) -> None:
    connection.close()


def _relay(connection: socket.socket, port: int) -> None:
    with socket.create_connection((LOOPBACK, port)) as upstream:

        def copy(source: socket.socket, sink: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:  # reset; closing alone would not wake the other thread
                with contextlib.suppress(OSError):
                    upstream.shutdown(socket.SHUT_RDWR)

        up = threading.Thread(target=copy, args=(connection, upstream))
        up.start()
        copy(upstream, connection)
        joined(up)


def test_not_an_ssh_server(transport: Transport) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    with misbehaving(answer) as port:
        found = failure(transport, node(port), seconds=3.0)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "not-ssh")


def test_no_answer_to_a_connection(transport: Transport) -> None:
    """A listener whose queue is full drops SYNs, as a firewall's DROP does."""
    with socket.socket() as full:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        found = failure(transport, node(address[1]), seconds=1.5)
        for filler in fillers:
            filler.close()
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "timed-out")


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=touch x", "-V", "a b", "host;touch x", "", "user@host", "a\n", "%(x)"]
)
def test_hostile_names_reach_no_program(transport: Transport, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_nothing(*arguments: object, **options: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "Popen", run_nothing)
    found = failure(transport, node(22, address=name))
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "invalid-name")


def test_hostile_user(transport: Transport) -> None:
    host = Node(name="n", address=LOOPBACK, node_rank=0, access=access(SshOptions(user="-oProxyCommand=id")))
    assert failure(transport, host).facts.reason == "invalid-name"


def test_configuration_that_ssh_rejects(transport: Transport, controller: Controller) -> None:
    controller.configure("Port\n")
    found = failure(transport, node(22))
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "ssh-config")
    assert "line 1" in " ".join(found.evidence)
    assert not found.facts.ran_out_of_time


def test_configuration_that_takes_too_long_is_asked_again(
    transport: Transport, controller: Controller, tmp_path: Path
) -> None:
    """As on a machine that has too much to do, or that stood still: no host is accused of it at the first try."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
        controller.configure(f'Match exec "exec 3> {fifo}; echo there >&3; sleep 1000"\n')
        found = failure(transport, node(22), 2.0)
        os.set_blocking(held.fileno(), True)
        assert held.read() == b"there\n"  # to its end: nobody has it open any more
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "ssh-config")
    assert found.detail == "could not be looked up: ssh -G took too long"
    assert found.facts.ran_out_of_time


def test_a_configuration_that_leaves_a_program_behind_is_read(
    transport: Transport, server: Sshd, controller: Controller, tmp_path: Path
) -> None:
    """As an agent that it starts: the program holds what ssh prints to, and is nobody's to end."""
    controller.know(server.known())
    controller.configure(f'Match exec "sleep 1000 & echo $! >> {tmp_path}/left"\n  User {account().pw_name}\n')
    assert run(transport, node(server.port), "echo in", seconds=60.0) == [b"in"]
    for pid in (tmp_path / "left").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def test_alias_and_host_key_alias(transport: Transport, server: Sshd, controller: Controller) -> None:
    controller.configure(f"Host big\n  HostName {LOOPBACK}\n  Port {server.port}\n  HostKeyAlias grande\n")
    host = Node(name="big", address="big", node_rank=0)
    found = failure(transport, host)
    assert (found.facts.target, found.facts.address, found.facts.port) == ("big", LOOPBACK, server.port)
    controller.know(f"grande {public(server.host_keys[0])}\n")
    fresh = type(transport)(*_arguments(transport))
    assert run(fresh, host, "echo in") == [b"in"]
    fresh.close()


def test_proxy_command(transport: Transport, server: Sshd, controller: Controller) -> None:
    controller.know(server.known())
    controller.configure("Host *\n  ProxyCommand nc %h %p\n")
    assert run(transport, node(server.port), "echo in") == [b"in"]


def test_proxy_command_that_fails(transport: Transport, controller: Controller) -> None:
    controller.configure("Host *\n  ProxyCommand sh -c 'read line; echo no such tunnel >&2; exit 1'\n")
    found = failure(transport, node(22), seconds=3.0)
    assert (found.kind, found.facts.reason) == ("ssh-unreachable", "proxy")
    assert "no such tunnel" in found.evidence[0]


def test_host_ca_goes_through_openssh(make: Make, controller: Controller, keys: Path, tmp_path: Path) -> None:
    ca = keygen(tmp_path / "ca")
    host = Path(shutil.copy(keys / "host_ed25519", tmp_path / "certified"))
    shutil.copy(keys / "host_ed25519.pub", tmp_path / "certified.pub")
    subprocess.run(["ssh-keygen", "-q", "-s", str(ca), "-I", "host", "-h", "-n", LOOPBACK, f"{host}.pub"], check=True)
    with sshd(keys, (host,), f"HostCertificate {host}-cert.pub") as running:
        controller.know(f"@cert-authority * {public(ca)}\n")
        assert run(make("auto"), node(running.port), "echo in") == [b"in"]
        assert failure(make("paramiko"), node(running.port)).kind == "ssh-host-key-unknown"
