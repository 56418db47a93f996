"""Real sshds and broken ones, on loopback, with nothing outside a temporary directory."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
import psutil
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from nccl_doctor.model.cluster import Node, access
from nccl_doctor.model.engines.ssh import SshOptions
from tests.patience import LONG_S, joined

LOOPBACK = "127.0.0.1"


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    bits = ["-b", "2048"] if kind == "rsa" else []  # more take seconds
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def public(key: Path) -> str:
    """Type and base64 of a key's public half."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


def fingerprint(key: Path) -> str:
    line = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True)
    return line.stdout.split()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Sshd:
    port: int
    host_keys: tuple[Path, ...]
    log: Path
    pid: int

    def connections(self) -> list[psutil.Process]:
        """The processes of those who are connected; one that has ended may wait for the listener to notice it."""
        return [one for one in psutil.Process(self.pid).children() if one.status() != psutil.STATUS_ZOMBIE]

    @property
    def name(self) -> str:
        return f"[{LOOPBACK}]:{self.port}"

    def known(self, key: Path | None = None) -> str:
        """The known_hosts line of this server, or of another key in its name."""
        return f"{self.name} {public(key or self.host_keys[0])}\n"


@contextmanager
def sshd(home: Path, host_keys: tuple[Path, ...], extra: str = "") -> Iterator[Sshd]:
    """A private sshd, that takes the key ``home/id``."""
    Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    place = home / f"sshd-{port}"
    place.mkdir()
    (place / "authorized_keys").write_text(public(home / "id") + "\n")
    lines = [
        *extra.splitlines(),  # the first value counts
        f"Port {port}",
        f"ListenAddress {LOOPBACK}",
        *(f"HostKey {key}" for key in host_keys),
        f"AuthorizedKeysFile {place}/authorized_keys",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        # bash, which Debian has read ~/.bashrc for ssh, does so in an outermost shell alone: in that of the machine's
        # user somebody else's lock may be waited for (pyenv's rehash has one, for a minute)
        "SetEnv SHLVL=2",
        "PermitRootLogin yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
    ]
    (place / "config").write_text("\n".join(lines) + "\n")
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
    assert program is not None, "openssh-server is needed"
    log = place / "log"
    with log.open("wb") as stderr:
        server = subprocess.Popen([program, "-D", "-e", "-f", str(place / "config")], stderr=stderr)
    try:
        _await_listener(port, server, log)
        yield Sshd(port, host_keys, log, server.pid)
    finally:
        server.terminate()
        server.wait(LONG_S)


def _await_listener(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end and server.poll() is None:
        if "Server listening" in log.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"sshd on port {port} did not start: {log.read_text()}")


@contextmanager
def misbehaving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that treats each connection as ``answer`` does; gives its port."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                taken.append(connection)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            joined(thread)
            for connection in taken:
                connection.close()


class Door(paramiko.ServerInterface):
    """Lets nobody in, and says what a test wants."""

    def __init__(self, methods: str, banner: str) -> None:
        self._methods, self._banner = methods, banner

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - paramiko's own
        return self._methods

    def get_banner(self) -> tuple[str, str]:
        return self._banner, "en"


@contextmanager
def doors(host_key: Path, methods: str = "publickey", banner: str = "hello\n", version: str = "x") -> Iterator[int]:
    """A server before whose login it ends; gives its port."""
    key = paramiko.Ed25519Key.from_private_key_file(str(host_key))
    servers: list[paramiko.Transport] = []

    def answer(connection: socket.socket) -> None:
        server = paramiko.Transport(connection)
        server.local_version = f"SSH-2.0-{version}"
        server.add_server_key(key)
        servers.append(server)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            server.start_server(event=threading.Event(), server=Door(methods, banner))

    with misbehaving(answer) as port:
        yield port
    for server in servers:
        server.close()


def for_ever(begin: bytes, piece: bytes) -> tuple[Callable[[socket.socket], None], list[int]]:
    """A server that sends without end, and how many bytes it could."""
    sent: list[int] = []

    def answer(connection: socket.socket) -> None:
        def serve() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(begin)
                while True:
                    sent.append(connection.send(piece * 1000))

        threading.Thread(target=serve, daemon=True).start()

    return answer, sent


@dataclass(frozen=True)
class Controller:
    """The machine the tool runs on: its home, its ssh configuration, its known hosts."""

    home: Path
    config: Path
    known_hosts: Path

    def configure(self, text: str) -> None:
        """Adds lines to the configuration, before what every host gets."""
        self.config.write_text(text + "\n" + self.config.read_text())

    def know(self, *lines: str) -> None:
        self.known_hosts.write_text("".join(lines))


def node(port: int, name: str = "node1", *, address: str = LOOPBACK, local: bool = False) -> Node:
    return Node(name=name, address=address, node_rank=0, access=access(SshOptions(port=port)), local=local)


class SlowDoor(paramiko.ServerInterface):
    """Lets everybody in, and starts a command only when a test lets it."""

    def __init__(self) -> None:
        self.asked, self.starts = threading.Event(), threading.Event()

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - paramiko's own
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002 - paramiko's own
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002 - paramiko's own
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:  # noqa: ARG002 - its own
        self.asked.set()
        return self.starts.wait(LONG_S)


@contextmanager
def slow_door(host_key: Path, log: str) -> Iterator[tuple[int, SlowDoor]]:
    """A server that starts commands late, and logs (as ``log``) requests that it does not know; gives its port."""
    key = paramiko.Ed25519Key.from_private_key_file(str(host_key))
    door = SlowDoor()
    servers: list[paramiko.Transport] = []

    def answer(connection: socket.socket) -> None:
        server = paramiko.Transport(connection)
        server.set_log_channel(log)
        server.add_server_key(key)
        servers.append(server)
        server.start_server(event=threading.Event(), server=door)

    with misbehaving(answer) as port:
        yield port, door
    for server in servers:
        server.close()
