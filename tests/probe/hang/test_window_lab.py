"""A sender whose peer has no room: one that answers the kernel's questions, and one behind a firewall by then."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hang.running import cut
from tests.lab.cluster import Lab
from tests.patience import LONG_S

PORT = 7000
PROJECT = Path(__file__).resolve().parents[3]
READER = f"""
import socket, sys
with socket.create_server(("", {PORT})) as server:
    reader = server.accept()[0]
sys.stdin.readline()
while True:
    reader.recv(1 << 20)
"""
WRITER = f"""
import json, os, socket, sys
from nccl_doctor.probe.hang import flows
while True:
    try:
        writer = socket.create_connection((sys.argv[1], {PORT}))
        break
    except ConnectionRefusedError:
        continue
writer.setblocking(False)
try:
    while True:
        writer.send(bytes(1 << 20))
except BlockingIOError:
    pass
for _ in sys.stdin:
    counted, = flows.by_rank([os.getpid()])[os.getpid()]
    tabled, = (row for row in flows.table_of(os.getpid()).values() if row["remote"] == counted["remote"])
    print(json.dumps([counted, tabled]), flush=True)
"""


@pytest.mark.lab
def test_questions_for_room_that_nobody_answers(lab: Lab) -> None:
    sender, receiver = lab.hosts[:2]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    reader = receiver.popen([sys.executable, "-c", READER], **pipes)
    command = ["env", f"PYTHONPATH={PROJECT}", sys.executable, "-c", WRITER, receiver.address]
    writer = sender.popen(command, **pipes)

    def look() -> list[dict[str, Any]]:
        assert writer.stdin is not None
        assert writer.stdout is not None
        print(file=writer.stdin, flush=True)
        rows: list[dict[str, Any]] = json.loads(writer.stdout.readline())
        return rows

    try:
        for _ in range(5):
            assert all((row["unsent"] > 0, row["probes"] <= 1) == (True, True) for row in look())
            time.sleep(0.1)
        with cut(receiver):
            assert reader.stdin is not None
            print(file=reader.stdin, flush=True)
            deadline = time.monotonic() + LONG_S
            while not all(row["probes"] > 1 for row in look()):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert all((row["unsent"] > 0, row["retransmits"]) == (True, 0) for row in look())
    finally:
        for process in (reader, writer):
            process.kill()
            process.communicate()  # closes its pipes, too
