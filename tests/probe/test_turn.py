"""The turn of a run on a host, between real processes: a name of its own, since this machine has one turn for all."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe import turn
from nccl_doctor.probe.turn import Turn, look

ROOT = Path(turn.__file__).parents[2]
FIRST = {"run": "a" * 32, "began": 1.0, "controller": "gpu01"}
SECOND = {"run": "b" * 32, "began": 2.0, "controller": "gpu02"}


@pytest.fixture(autouse=True)
def _own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "NAME", b"\0nccl-doctor/test/%d" % os.getpid())


@pytest.fixture
def mine() -> Iterator[Turn]:
    held = Turn()
    yield held
    held.leave()


def test_one_run_has_it_and_others_are_told_who(mine: Turn) -> None:
    assert mine.take(FIRST) is None
    holder = Turn().take(SECOND)
    assert holder is not None
    assert 0 <= holder.pop("held_s") < 60
    assert holder == {**FIRST, "user": pwd.getpwuid(os.getuid()).pw_name}


def test_two_probes_of_one_run_on_one_machine_share_it(mine: Turn) -> None:
    assert mine.take(FIRST) is None
    assert mine.take(FIRST) is None
    assert Turn().take(FIRST) is None


def test_whoever_leaves_makes_room(mine: Turn) -> None:
    for _ in range(50):
        assert mine.take(FIRST) is None
        mine.leave()
        other = Turn()
        assert other.take(SECOND) is None
        other.leave()
    assert look() == {}


def test_it_ends_with_its_process(mine: Turn) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom nccl_doctor.probe import turn\nturn.NAME = {turn.NAME!r}\n"
    program += f"print(turn.Turn().take({SECOND!r}), flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "None\n"
    holder = mine.take(FIRST)
    assert holder is not None
    assert holder["run"] == SECOND["run"]
    child.kill()
    child.communicate()
    assert mine.take(FIRST) is None


@pytest.mark.parametrize("told", [b"", b"[]", b"{", b"\xff" * 10_000, b'{"run": 7, "more": "x"}', b"null"])
def test_whatever_else_holds_the_name_is_no_fault_of_ours(told: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(turn.NAME)
        listener.listen()
        import threading

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(told)

        thread = threading.Thread(target=serve)
        thread.start()
        holder: dict[str, Any] | None = Turn().take(FIRST)
        thread.join()
    assert holder is not None
    assert holder["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert holder.keys() <= {"user", "run"}


def test_a_holder_that_is_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(turn.NAME)
        listener.listen(0)
        found = [Turn().take(FIRST) for _ in range(3)]
    assert all(holder is not None and holder.get("run") is None for holder in found)
