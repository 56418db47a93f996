"""What our session of paramiko's sends, and what not."""

from __future__ import annotations

import socket

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_OPEN

from nccl_doctor.transport.ssh.session import GreetedStream, SshSession


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
