"""Dials where those that dial us have taken every file that this process may open."""

from __future__ import annotations

import ast
import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from tests.patience import LONG_S, joined

SCRIPT = """
import os, resource, sys, threading, time
from nccl_doctor.probe.mesh.dials import dial_all
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
def free():
    time.sleep(0.3)
    for number in held:
        os.close(number)
threading.Thread(target=free, daemon=True).start()
print(dial_all([[sys.argv[1], [int(sys.argv[2])], "nonce"]], 20.0)[0][2:4])
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_dial_waits_for_a_file_and_needs_none_to_wait(address: str) -> None:
    """Neither it nor the resolver, which says of any name that there is none where it can open nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection, contextlib.suppress(ConnectionResetError):  # so a dial ends
                connection.sendall(b"nonce")
                connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, address, str(listener.getsockname()[1])],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG_S,
        )
        if "connected" not in done.stdout:
            socket.create_connection(listener.getsockname(), LONG_S).close()  # lets the thread end
        joined(thread)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == ["connected", None]
