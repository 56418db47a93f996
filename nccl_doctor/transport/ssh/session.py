"""paramiko's session, with the words of the server kept, and an end that every wait of it has."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, cast

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_EXTENDED_DATA
from paramiko.packet import Packetizer

from nccl_doctor.transport.ssh.sockets import GreetedStream, Stream

MAX_PACKET = 256 * 1024
"""Bytes of a packet: OpenSSH's PACKET_MAX_SIZE. paramiko believes a server's word, which has 32 bits."""

_OF_A_CHANNEL = (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_CLOSE)
"""What may not be sent to a channel any more once it was closed (RFC 4254, section 5.3)."""

_MAX_VERSIONS = 64 * 1024
"""Bytes of the version that a server tells, and of the lines that it may send before (RFC 4253, section 4.2)."""


class _Packets(Packetizer):
    """Takes no packet and no version without bound: both come before anybody knows whose the server is."""

    _before = 0

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """So many bytes."""
        if n > MAX_PACKET:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        return super().read_all(n, check_rekey)

    def _read_timeout(self, timeout: float) -> bytes:
        chunk: bytes = super()._read_timeout(timeout)  # type: ignore[misc]  # not in the stubs
        self._before += len(chunk)
        if self._before > _MAX_VERSIONS:
            raise paramiko.SSHException(f"no version in {_MAX_VERSIONS} bytes")
        return chunk


Feed = Callable[[paramiko.Channel, paramiko.Message], None]


def _within_window(feed: Feed) -> Feed:
    """Bounds what a channel holds: paramiko counts its window (RFC 4254, section 5.2) and keeps whatever comes."""

    def take(channel: paramiko.Channel, message: paramiko.Message) -> None:
        feed(channel, message)
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size + MAX_PACKET:
            raise paramiko.SSHException("more data than the channel's window has room for")

    return take


class SshSession(paramiko.Transport):
    """Tells each thread why its own channel was not opened, and why the server hung up, in the server's words.

    paramiko keeps one last exception for all threads, and without the words, which tell "refused" from "no route".

    Attributes:
        farewell: what the server said as it ended the session (RFC 4253, section 11.1); empty where it merely closed.
        offers: the algorithms that the server offered, beside paramiko's name for their sort (RFC 4253, section 7.1).
    """

    _channel_handler_table: ClassVar[dict[int, Feed]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001 - it has no other
        MSG_CHANNEL_DATA: _within_window(paramiko.Channel._feed),  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_EXTENDED_DATA: _within_window(paramiko.Channel._feed_extended),  # type: ignore[attr-defined]  # noqa: SLF001
    }

    def __init__(self, stream: GreetedStream) -> None:
        self._stream = stream
        # it asks for no more than a Stream
        super().__init__(cast("socket.socket", stream), packetizer_class=_Packets)
        self._wanted: dict[int, int] = {}  # by thread, the channel that it is opening
        self._refusals: dict[int, paramiko.ChannelException] = {}  # by channel
        self._order = threading.Lock()
        self._closed: set[int] = set()  # the server's numbers of channels that we have closed
        self.farewell = ""
        self.offers: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]  # not in the stubs
        self._wanted[threading.get_ident()] = number
        return number

    def _send_user_message(self, data: paramiko.Message) -> None:
        """Sends no data behind a channel's end: OpenSSH ends the whole session for it, and with it all other channels.

        paramiko looks whether a channel is closed, and sends later, without a lock (Channel.send; sshd's channels.c,
        channel_from_packet_id). Of a jump host's session that would be every host behind it.
        """
        text = data.asbytes()
        number = int.from_bytes(text[1:5], "big") if text[0] in _OF_A_CHANNEL else -1
        with self._order:
            if number in self._closed:
                return
            if text[0] == MSG_CHANNEL_CLOSE:
                self._closed.add(number)
            super()._send_user_message(data)  # type: ignore[misc]  # not in the stubs

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        """Another channel may have the number of one that was closed."""
        words = paramiko.Message(message.get_remainder())
        words.get_int()
        self._closed.discard(words.get_int())
        super()._parse_channel_open_success(message)  # type: ignore[misc]  # not in the stubs

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        number, code = words.get_int(), words.get_int()
        self._refusals[number] = paramiko.ChannelException(code, words.get_text())
        super()._parse_channel_open_failure(message)  # type: ignore[misc]  # not in the stubs

    def _parse_kex_init(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_bytes(16)  # a random cookie
        sorts = ("kex", "key_types", "ciphers", "ciphers", "digests", "digests")  # the last two for each direction
        self.offers = tuple((sort, tuple(words.get_list())) for sort in sorts)
        super()._parse_kex_init(message)  # type: ignore[misc]  # not in the stubs

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_int()
        self.farewell = words.get_text()
        super()._parse_disconnect(message)  # type: ignore[misc]  # not in the stubs

    def said(self) -> str:
        """The last banner that the server sent during the login: PAM's words where PAM had any (RFC 4252, 5.4)."""
        handler = self.auth_handler  # get_banner() forgets it when the server hangs up
        banner = handler.banner if handler is not None else None
        return banner.decode(errors="replace") if isinstance(banner, bytes) else str(banner or "")

    def connection(self) -> socket.socket | None:
        """The TCP connection beneath; None where it is not our own."""
        return self._stream.inner if isinstance(self._stream.inner, socket.socket) else None

    def takes_more(self) -> bool:
        """Whether a short message goes out without a wait: there may be many to write to, and one of them dead."""
        return self.clear_to_send.is_set() and _takes_more(self._stream.inner)

    def get_exception(self) -> Exception | None:
        """What ended this thread's wish for a channel, else what ended the session."""
        refusal = self._refusals.pop(self._wanted.pop(threading.get_ident(), -1), None)
        error = super().get_exception()
        return refusal or (None if isinstance(error, paramiko.ChannelException) else error)


def _takes_more(stream: Stream) -> bool:
    if isinstance(stream, paramiko.Channel):  # through a jump host
        through = stream.get_transport()
        return stream.send_ready() and isinstance(through, SshSession) and through.takes_more()
    number = stream.fileno()
    poll = select.poll()
    if number >= 0:  # else it is closed
        poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


@contextmanager
def ends_at(deadline: float, transport: paramiko.Transport) -> Iterator[None]:
    """Closes the session at the deadline, which ends whatever paramiko waits for without one."""
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
