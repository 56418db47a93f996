from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.probe import netlink


@given(st.sampled_from([socket.AF_INET, socket.AF_INET6]), st.binary(min_size=71, max_size=200))
def test_any_message_is_read(family: int, rest: bytes) -> None:
    one = netlink.parse_socket(bytes([family]) + rest)
    assert 0 <= one.local_port <= 65535
    assert one.state


def test_a_pair_is_seen_from_both_ends() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("::1", port)) as client, server.accept()[0]:
            found = netlink.sockets_on(port)
            back = netlink.sockets_on(client.getsockname()[1])
    assert sorted(one.state for one in found) == ["ESTABLISHED", "LISTEN"]
    assert [(one.remote_address, one.remote_port) for one in back] == [("::1", port)]
    assert all(one.inode and one.expires_s is None for one in found)


def test_a_port_is_told_without_its_neighbours() -> None:
    with socket.socket() as one, socket.socket() as other, socket.create_server(("127.0.0.1", 0)) as server:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        listening, bound = server.getsockname()[1], one.getsockname()[1]
        assert {row.local_port for row in netlink.sockets_on(listening)} == {listening}
        every = {row.local_port for row in netlink.sockets_on(0)}
        assert listening in every
        # kernels that do not dump what is only bound show it nowhere
        assert {row.local_port for row in netlink.sockets_on(bound)} == {bound} & every


def test_a_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, kernel = socket.socketpair()
    body = struct.pack("=i", -errno.ENOENT) + bytes(16)
    kernel.send(struct.pack("=IHHII", 16 + len(body), netlink.NLMSG_ERROR, 0, 1, 0) + body)
    monkeypatch.setattr(socket, "socket", lambda *_args: ours)
    with kernel, pytest.raises(FileNotFoundError):
        netlink.sockets_on(29500)
