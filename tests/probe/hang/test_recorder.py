"""What of torch's flight recorder can be read, and that nothing else is spoken to."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe import procs
from nccl_doctor.probe.hang import recorder
from nccl_doctor.probe.tools import Unavailable
from tests.patience import LONG_S

ENTRY = {"collective_seq_id": 1, "pg_id": 0, "profiling_name": "gloo:all_reduce", "frames": ["secret"]}
DOCUMENT = {"version": "2.10", "pg_status": {"0": {}}, "entries": [ENTRY] * 100, "pg_config": {}}
SERVER = "TORCH_WORKER_SERVER_SOCKET"


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A worker's server in this process; it keeps the connection open, as torch's does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        held = []

        def serve() -> None:
            try:
                client = server.accept()[0]
            except OSError:
                return
            held.append(client)
            client.recv(1000)
            client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        for client in held:
            client.close()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def row(number: int = 0, pid: int | None = None, told: dict[str, str] | None = None) -> dict[str, Any]:
    """What hang/ranks.py tells of a rank that is this process, or another."""
    proc = procs.read_proc(pid or os.getpid())
    assert proc is not None
    return {"pid": proc.pid, "started": proc.started, "uid": os.getuid(), "rank": number, "told": told or {}}


def soon() -> float:
    return time.monotonic() + LONG_S


def live(prefix: Path) -> object:
    return recorder.live(row(told={SERVER: str(prefix)}), soon())


def test_a_running_ranks_last_entries(tmp_path: Path) -> None:
    with answering(tmp_path / "ws0", http(json.dumps(DOCUMENT).encode())):
        told = live(tmp_path / "ws")
    assert isinstance(told, dict)
    assert len(told["entries"]) == recorder.ENTRIES
    assert told["entries"][0] == {key: ENTRY[key] for key in ENTRY if key != "frames"}


@pytest.mark.parametrize("answer", [http(b"no", "404 Not Found"), http(b"[1]"), b"\x00" * 50, http(b'{"entries": 3}')])
def test_an_answer_that_is_none(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "ws", answer), pytest.raises(Unavailable, match="flight recorder"):
        recorder.live(row(told={SERVER: str(tmp_path / "ws")}), time.monotonic() + 0.5)


def test_no_other_socket_is_spoken_to(tmp_path: Path) -> None:
    with answering(tmp_path / "other", b""):
        assert live(tmp_path / "ws") is None
        assert recorder.live(row(), soon()) is None
        assert recorder.live(row(pid=os.getppid(), told={SERVER: str(tmp_path / "other")}), soon()) is None


def test_the_newest_dump_since_the_rank_began(tmp_path: Path) -> None:
    named = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/old_"}
    assert recorder.dumped(row(3, told=named), 10, soon()) is None
    (tmp_path / "old_3").write_bytes(b"older")
    os.utime(tmp_path / "old_3", (time.time() - 5, time.time() - 5))
    (tmp_path / "trace_3").write_bytes(b"dump\n{}")
    found = recorder.dumped(row(3, told=named), 10, soon())
    assert found is not None
    assert (found["name"], base64.b64decode(found["data"])) == ("trace_3", b"dump\n{}")
    for name in ("old_3", "trace_3"):
        os.utime(tmp_path / name, (1, 1))
    assert recorder.dumped(row(3, told=named), 10, soon()) is None


def test_a_dump_below_the_ranks_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_0").write_bytes(b"dump")
    found = recorder.dumped(row(told={"TORCH_FR_DUMP_TEMP_FILE": "trace_"}), 10, soon())
    assert found is not None
    assert base64.b64decode(found["data"]) == b"dump"


def test_a_dump_is_asked_for_by_a_pipe_that_somebody_reads(tmp_path: Path) -> None:
    told = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p")}
    assert not recorder.ask_for_dump(row(0, told=told), soon())
    (tmp_path / "p0.pipe").write_text("")
    assert not recorder.ask_for_dump(row(0, told=told), soon())
    assert (tmp_path / "p0.pipe").read_text() == ""
    os.mkfifo(tmp_path / "p1.pipe")
    assert not recorder.ask_for_dump(row(1, told=told), soon())
    reader = os.open(tmp_path / "p1.pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert recorder.ask_for_dump(row(1, told=told), soon())
    assert os.read(reader, 10) == b"1\n"
    os.close(reader)
