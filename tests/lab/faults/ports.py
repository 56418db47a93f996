"""What can hold the master port."""

import sys
from textwrap import dedent

from tests.lab.cluster import Lab
from tests.lab.faults.catalogue import MASTER_PORT, register
from tests.lab.host import LabHost
from tests.patience import LONG_S

_HEAD = f"import socket, sys, time\nPORT = {MASTER_PORT}\n"


def _leave_behind(host: LabHost, name: str, body: str, *arguments: str, python: str = sys.executable) -> None:
    """Run a Python program as an orphan that nobody watches over; it writes `NAME.ready` when it has its socket.

    It goes by the name `python`, whatever stands there.
    """
    ready = f"/run/{name}.ready"
    host.write(f"/root/{name}", f"{_HEAD}{dedent(body)}open({ready!r}, 'w').close()\ntime.sleep(86400)\n")
    run = f'exec -a {python} {sys.executable} "$@"'
    host.background(["bash", "-c", run, "bash", "-u", f"/root/{name}", *arguments])
    host.wait_until(lambda: host.run(["test", "-e", ready], check=False).returncode == 0, f"the start of {name}")


@register("stale-listener")
def leave_listener(lab: Lab, host: LabHost, python: str = sys.executable) -> None:
    """A rank of a job that is gone still listens on the master port."""
    body = """\
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        """
    _leave_behind(host, "train.py", body, "--local_rank=0", python=python)


@register("bound-not-listening")
def bind_port(lab: Lab, host: LabHost) -> None:
    """A program has bound the master port and does not listen: neither `ss -l` nor /proc/net/tcp shows it."""
    body = """\
        holder = socket.socket()
        holder.bind(("0.0.0.0", PORT))
        """
    _leave_behind(host, "reserve.py", body)


@register("outbound-owner")
def own_outbound(lab: Lab, host: LabHost) -> None:
    """A client's connection to another service on the host has drawn the master port as its own end."""
    body = f"""\
        service = socket.create_server(({host.address!r}, 0))
        client = socket.create_connection(service.getsockname(), source_address=({host.address!r}, PORT))
        server, _ = service.accept()
        """
    _leave_behind(host, "client.py", body)


@register("time-wait")
def leave_time_wait(lab: Lab, host: LabHost) -> None:
    """A server without SO_REUSEADDR closed a peer's connection and ended: TIME_WAIT holds the port for a minute."""
    body = """\
        server = socket.socket()
        server.bind(("0.0.0.0", PORT))
        server.listen()
        open("/run/server.listens", "w").close()
        connection, _ = server.accept()
        connection.close()
        server.close()
        """
    program = f"{_HEAD}{dedent(body)}"
    peer = lab.others(host)[0] if len(lab.hosts) > 1 else lab.controller
    dial = f"import socket; s = socket.create_connection(({host.address!r}, {MASTER_PORT}), 10); s.recv(1); s.close()"
    with host.popen([sys.executable, "-c", program]) as server:
        listens = ["test", "-e", "/run/server.listens"]
        host.wait_until(lambda: host.run(listens, check=False).returncode == 0, "the server's start")
        peer.run([sys.executable, "-c", dial])
        server.wait(LONG_S)
    # until the peer's last segment has come, which may be after its end, the connection is in FIN-WAIT-2
    left = f"ss -Htan state time-wait sport = :{MASTER_PORT}"
    host.wait_until(lambda: host.run(left).stdout.count("\n") == 1, "TIME_WAIT")
