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
def answering(path: Path, answer: bytes, others: dict[str, bytes] | None = None) -> Iterator[None]:
    """A worker's server in this process; it keeps connections open, as torch's does, and has ``others`` by handler."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        held = []

        def serve() -> None:
            while True:
                try:
                    client = server.accept()[0]
                except OSError:
                    return
                held.append(client)
                handler = client.recv(1000).split()[1].decode().removeprefix("/handler/")
                missing = http(b"Failed to find handler", "404 Not Found")
                client.sendall(answer if handler == "fr_trace_json" else (others or {}).get(handler, missing))

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


def calls(backend: str, *times: int) -> bytes:
    """Return the answer of a recorder of group 0 with a collective at each of these times."""
    entries = [
        {
            "collective_seq_id": seq,
            "process_group": ["0", "default_pg"],
            "profiling_name": f"{backend}:all_reduce",
            "time_created_ns": at,
        }
        for seq, at in enumerate(times, 1)
    ]
    status = {"0": {"last_enqueued_collective": len(times)}} if times else {}
    # without any entry torch leaves "entries" out
    return http(
        json.dumps({"version": "2.10", "pg_status": status, **({"entries": entries} if times else {})}).encode()
    )


def seen(told: object) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the group and name of each call, and the groups with a status."""
    assert isinstance(told, dict)
    return [(one["process_group"][0], one["profiling_name"]) for one in told["entries"]], [*told["pg_status"]]


NCCL, NCCL2 = "dump_nccl_trace_json", "fr_trace_json?backend=nccl2"


def test_the_recorders_of_all_backends_are_one(tmp_path: Path) -> None:
    """gloo and NCCL count the collectives of one group each by itself."""
    with answering(tmp_path / "ws", calls("gloo", 5, 7), {NCCL: calls("nccl", 6), NCCL2: calls("gloo", 5, 7)}):
        told = live(tmp_path / "ws")
    gloo = ("0 (gloo)", "gloo:all_reduce")
    assert seen(told) == ([gloo, ("0", "nccl:all_reduce"), gloo], ["0 (gloo)", "0"])


def test_the_recorder_of_nccl2(tmp_path: Path) -> None:
    with answering(tmp_path / "ws", calls("gloo"), {NCCL: calls("nccl"), NCCL2: calls("nccl2", 1, 2)}):
        told = live(tmp_path / "ws")
    assert seen(told) == ([("0", "nccl2:all_reduce")] * 2, ["0"])


def test_a_torch_that_does_not_know_backends_answers_for_gloo_twice(tmp_path: Path) -> None:
    with answering(tmp_path / "ws", calls("gloo", 1), {NCCL2: calls("gloo", 1)}):
        told = live(tmp_path / "ws")
    assert seen(told) == ([("0", "gloo:all_reduce")], ["0"])


def test_an_old_torch_has_the_recorder_of_nccl_alone(tmp_path: Path) -> None:
    with answering(tmp_path / "ws", http(b"", "404 Not Found"), {NCCL: calls("nccl", 1)}):
        told = live(tmp_path / "ws")
    assert seen(told) == ([("0", "nccl:all_reduce")], ["0"])


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
