"""Plain ways to see what a host of the lab does, for the tests of the lab itself and of what it breaks."""

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.patience import crowd

_DIAL = """\
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
    print("connected")
except TimeoutError:
    print("timed out")
except OSError as error:
    print(errno.errorcode[error.errno])
"""

# Answers "ok" to a client that has sent as many bytes as its first line announced.
_SINK = """\
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    with connection, connection.makefile("rwb") as stream:
        if (head := stream.readline()) and len(stream.read(int(head))) == int(head):
            stream.write(b"ok")
"""

_SEND = """\
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[4])) as connection:
    size = int(sys.argv[3])
    try:
        connection.sendall(b"%d\\n" % size + bytes(size))
        print(connection.recv(2).decode())
    except TimeoutError:
        print("timed out")
"""

_BIND = """\
import errno, socket, sys
try:
    socket.socket().bind(("", int(sys.argv[1])))
    print("free")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def dial(source: LabHost, address: str, port: int, *, timeout: float = 0.6) -> str:
    """Connect once; return "connected", "timed out" or the errno's name."""
    return source.run([sys.executable, "-c", _DIAL, address, str(port), str(timeout * crowd())]).stdout.strip()


def send(source: LabHost, address: str, port: int, size: int) -> str:
    """Send bytes to a host that has `listening`; return "ok" once it has them all, or "timed out"."""
    return source.run([sys.executable, "-c", _SEND, address, str(port), str(size), str(crowd())]).stdout.strip()


def bind(host: LabHost, port: int) -> str:
    """Bind a port on all addresses, without SO_REUSEADDR; return "free" or the errno's name."""
    return host.run([sys.executable, "-c", _BIND, str(port)]).stdout.strip()


@contextlib.contextmanager
def listening(host: LabHost, *ports: int) -> Iterator[None]:
    """Listen on ports of a host for a while."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            server = stack.enter_context(host.popen([sys.executable, "-c", _SINK, str(port)]))
            stack.callback(server.kill)
        wanted = set(ports)
        host.wait_until(lambda: wanted <= {port for _, port in host.listeners()}, f"listening on {wanted}")
        yield


def ssh(lab: Lab, host: LabHost, command: str, *, user: str = "root") -> subprocess.CompletedProcess[str]:
    """Run a command on a host as the controller's `ssh` does, without a terminal; it may fail."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={math.ceil(crowd())}"]
    return lab.controller.run(["ssh", *options, host.name, command], check=False, user=user)
