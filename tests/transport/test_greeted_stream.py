"""Who ended a connection: the server, or ourselves at a deadline."""

from __future__ import annotations

import socket

import pytest

from nccl_doctor.transport.ssh.session import GreetedStream


class Waiting:
    """A socket that is closed by a timer while somebody waits for it, which wakes them with an end of file."""

    def __init__(self) -> None:
        self.around = GreetedStream(self)

    def recv(self, _size: int) -> bytes:
        self.around.close()
        return b""

    def send(self, _data: bytes) -> int:
        self.around.close()
        raise BrokenPipeError

    def settimeout(self, _seconds: float | None) -> None:
        """It waits as long as the timer."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is behind it."""


def test_the_server_hung_up() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"SSH-2.0-x\r\n")
    theirs.close()
    stream = GreetedStream(ours)
    assert stream.recv(64) == b"SSH-2.0-x\r\n"
    assert stream.recv(64) == b""
    assert (stream.greeted, stream.ended) == (True, True)
    stream.close()


def test_our_own_deadline_is_not_the_server_hanging_up() -> None:
    """Else a server that is slow is told as one that hung up, whenever the timer is before the thread that waits."""
    stream = Waiting().around
    assert stream.recv(64) == b""
    assert not stream.ended
    stream = Waiting().around
    with pytest.raises(BrokenPipeError):
        stream.send(b"x")
    assert not stream.ended


@pytest.mark.parametrize(
    ("error", "ended"), [(OSError("Socket is closed"), True), (TimeoutError(), False), (BlockingIOError(), False)]
)
def test_a_channel_that_the_other_side_has_closed_is_a_hang_up(error: OSError, ended: bool) -> None:
    """paramiko's Channel.send has an OSError of its own for that, and a time-out of its window is none."""

    class Closed(Waiting):
        def send(self, _data: bytes) -> int:
            raise error

    stream = Closed().around
    with pytest.raises(type(error)):
        stream.send(b"x")
    assert stream.ended == ended


def test_a_farewell_that_a_lost_jump_host_does_not_take_is_no_fault() -> None:
    """What paramiko's Channel.close does in the moment in which the connection beneath it has gone."""

    class Orphan(Waiting):
        def close(self) -> None:
            raise EOFError

    Orphan().around.close()
