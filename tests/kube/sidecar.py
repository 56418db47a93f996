"""A sidecar as Istio's is between pods: it takes every connection that leaves a host, and waits for the first words.

``python sidecar.py``, as the one user whose own connections the host's rules leave alone. Server-first protocols hang
behind it, since it looks at what the dialler says before it connects to where that wanted to go.
"""

import selectors
import socket
import struct
import threading

SO_ORIGINAL_DST = 80
PORT = 15001

RULES = """\
iptables -t nat -N ISTIO_OUTPUT
iptables -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT
iptables -t nat -A ISTIO_OUTPUT -o lo -j RETURN
iptables -t nat -A ISTIO_OUTPUT -m owner --uid-owner alice -j RETURN
iptables -t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001
"""


def serve(taken: socket.socket) -> None:
    with taken:
        first = taken.recv(65536)
        if not first:
            return
        port, address = struct.unpack("!2xH4s8x", taken.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
        try:
            beyond = socket.create_connection((socket.inet_ntoa(address), port), 2)
        except OSError:
            return
        with beyond:
            beyond.sendall(first)
            relay(taken, beyond)


def relay(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(65536)  # type: ignore[union-attr]  # sockets alone are registered
                if not data:
                    return
                key.data.sendall(data)


def quietly(taken: socket.socket) -> None:
    try:
        serve(taken)
    except OSError:  # the connection broke, as connections do
        return


def main() -> None:
    with socket.create_server(("", PORT), backlog=256) as listening:
        while True:
            taken, _ = listening.accept()
            threading.Thread(target=quietly, args=(taken,), daemon=True).start()


if __name__ == "__main__":
    main()
