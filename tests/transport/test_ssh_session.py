"""What our session of paramiko's sends, and what not."""

from __future__ import annotations

import math
import socket
import threading
import time

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_OPEN

from nccl_doctor.transport.ssh.session import GreetedStream, SshSession, ends_at
from tests.patience import LONG_S


def of_channel(kind: int, number: int) -> paramiko.Message:
    message = paramiko.Message()
    message.add_byte(bytes([kind]))
    message.add_int(number)
    return message


def test_no_data_goes_to_a_channel_behind_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that looked before another one closed it would have sshd end the session, and all others' channels."""
    sent: list[bytes] = []
    monkeypatch.setattr(paramiko.Transport, "_send_user_message", lambda _, message: sent.append(message.asbytes()))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = SshSession(GreetedStream(ours))
        data, end, opening = (of_channel(kind, 3) for kind in (MSG_CHANNEL_DATA, MSG_CHANNEL_CLOSE, MSG_CHANNEL_OPEN))
        other = of_channel(MSG_CHANNEL_DATA, 4)
        for message in (data, end, data, end, other, opening):
            session._send_user_message(message)
        assert sent == [one.asbytes() for one in (data, end, other, opening)]
        opened = paramiko.Message()
        for number in (0, 3, 1 << 20, 1 << 15):  # ours, the server's, its window and packets
            opened.add_int(number)
        session._parse_channel_open_success(paramiko.Message(opened.asbytes()))
        session._send_user_message(data)
        assert sent[-1] == data.asbytes(), "the server has given its number to another one"


class Session(paramiko.Transport):
    """One that merely notes that it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_a_deadline_that_passes_closes_its_session_alone() -> None:
    late, early, done = Session(), Session(), Session()
    with ends_at(math.inf, late), ends_at(time.monotonic() + LONG_S, early):
        with ends_at(time.monotonic() + 0.05, done):
            pass
        with ends_at(time.monotonic() + 0.1, due := Session()):
            assert due.closed.wait(LONG_S)
    assert not any(one.closed.is_set() for one in (late, early, done))


def test_deadlines_hold_where_no_further_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with ends_at(time.monotonic() + LONG_S, Session()):  # whose watch runs from now on
        pass

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):
        with ends_at(time.monotonic() + 0.05, session := Session()):
            assert session.closed.wait(LONG_S)
