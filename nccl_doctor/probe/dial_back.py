"""What a pod of the rendered Job runs, as a script of its own: it comes to the meeting point, and starts what is asked.

It connects to the first pod, says who it is, and waits for a line of shell; only one that is signed with the Job's own
token runs, with the connection as its stdin and stdout. When that has ended it comes again, until nobody is there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import subprocess
import sys
import time

FIRST_S = 600.0
"""For the first pod to come up."""
AGAIN_S = 6.0
"""After it was met: it listens as long as it checks, and has gone when nobody does for so long."""


def sign(token: str, *parts: bytes) -> bytes:
    """The proof of who knows the token."""
    return hmac.new(token.encode(), b" ".join(parts), hashlib.sha256).hexdigest().encode()


def serve(connection: socket.socket, name: str, token: str) -> None:
    """One meeting: ``NAME NONCE`` to them; ``NONCE PROOF COMMAND``, the last in hex, to us; ``PROOF``; the command."""
    words = connection.makefile("rb", 0)  # byte by byte: what comes behind the line is the command's
    mine = os.urandom(16).hex().encode()
    connection.sendall(name.encode() + b" " + mine + b"\n")
    told = words.readline(1 << 20).split()
    if len(told) != 3 or not hmac.compare_digest(told[1], sign(token, b"run", mine, told[0], told[2])):
        return
    connection.sendall(sign(token, b"here", told[0]) + b"\n")
    command = bytes.fromhex(told[2].decode()).decode()
    subprocess.call(["/bin/sh", "-c", command], stdin=connection.fileno(), stdout=connection.fileno())


def main() -> None:
    """``HOST PORT NAME``, and the token in NCDOCTOR_TOKEN."""
    host, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    token = os.environ.pop("NCDOCTOR_TOKEN")
    for ours in ("NCDOCTOR_AGENT", "NCDOCTOR_WRITER", "NCDOCTOR_PORT"):  # nothing of ours is the job's environment
        os.environ.pop(ours, None)
    until = time.monotonic() + FIRST_S
    while time.monotonic() < until:
        try:
            with socket.create_connection((host, port), 5) as connection:
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                serve(connection, name, token)
            until = time.monotonic() + AGAIN_S
        except OSError:
            time.sleep(0.5)


if __name__ == "__main__":
    main()
