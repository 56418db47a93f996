"""Dials of a host that may open few files."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_doctor.probe.mesh import mesh
from nccl_doctor.probe.mesh.dials import FULL, Dial, Round, SocketAddress, dial_all
from nccl_doctor.probe.mesh.mesh import MeshEnd, dial
from tests.patience import LONG_S, joined

NONCE = b"0123456789abcdef"


@pytest.fixture
def port() -> Iterator[int]:
    """Of a listener that answers as ours do; it keeps each connection until the other end goes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while listening.fileno() >= 0:
                try:
                    connection, _ = listening.accept()
                    with connection:
                        connection.sendall(NONCE)
                        connection.recv(1)
                except OSError:  # no file is left, the dial has ended, or the test is over
                    time.sleep(0.01)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@contextlib.contextmanager
def no_file_left() -> Iterator[None]:
    """All that this process may open is open."""
    gc.collect()  # what other tests left closes its file now, and not while none is to be free
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_dial_that_finds_no_file_in_its_time_is_told_as_that(port: int) -> None:
    dial = Dial([(socket.AF_INET, ("127.0.0.1", port))], NONCE)
    with no_file_left():
        ends = Round(0.3).run([((0, port), dial)])
    assert ends[0, port][:2] == FULL


def test_a_name_that_finds_no_file_in_its_time_is_told_as_that(port: int) -> None:
    """It is not a name that does not resolve, nor one at which nobody answers."""
    with no_file_left():
        ((_, _, *outcome, _, _),) = dial_all([["localhost", [port], NONCE.decode()]], 0.3)
    assert tuple(outcome) == FULL


def test_a_family_that_the_kernel_lacks_is_passed_over(port: int) -> None:
    places = [(9999, ("127.0.0.1", port)), (socket.AF_INET, ("127.0.0.1", port))]
    assert Round(5.0).run([((0, port), Dial(places, NONCE))])[0, port][:2] == ("connected", None)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("unsent", [errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT])
def test_a_refusal_is_told_beside_an_address_to_which_nothing_was_sent(
    unsent: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"10.0.0.1": errno.ECONNREFUSED, "10.0.0.2": unsent}
    monkeypatch.setattr(socket.socket, "connect_ex", lambda _, place: answers[place[0]], raising=False)
    places: list[SocketAddress] = [(socket.AF_INET, (address, 29500)) for address in answers]
    assert Round(5.0).run([((0, 29500), Dial(places[::order], NONCE))])[0, 29500][:2] == ("refused", "ECONNREFUSED")
    alone = Dial([(socket.AF_INET, ("10.0.0.2", 29500))], NONCE)
    assert Round(5.0).run([((0, 29500), alone)])[0, 29500][1] == errno.errorcode[unsent]


def test_dials_wait_for_a_file_together_and_not_one_after_the_other(port: int) -> None:
    """Forty that wait 0.5 s each take 20 s; who asked for them waits for as long as one takes."""
    dials = [((index, port), Dial([(socket.AF_INET, ("127.0.0.1", port))], NONCE)) for index in range(40)]
    since = time.monotonic()
    with no_file_left():
        ends = Round(0.5).run(dials)
    assert {end[:2] for end in ends.values()} == {FULL}
    assert len(ends) == 40
    assert time.monotonic() - since < 10


def test_the_second_address_of_a_name_waits_for_a_file_too(port: int) -> None:
    """The first takes the dial and ends it when no file is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as ends_it:
        places: list[SocketAddress] = [(socket.AF_INET, ends_it.getsockname()), (socket.AF_INET, ("127.0.0.1", port))]

        def serve() -> None:
            connection, _ = ends_it.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay
            connection.close()
            time.sleep(0.3)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            ends = Round(20.0).run([((0, port), Dial(places, NONCE))])
        finally:
            joined(thread)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ends[0, port][:2] == ("connected", None)


def test_the_second_address_of_a_name_is_not_spoken_to_for_the_first(port: int) -> None:
    """The first is silent until it is spoken to, as a proxy is, and then resets; the second says the nonce by itself."""
    with socket.create_server(("127.0.0.1", 0)) as resets:
        places: list[SocketAddress] = [(socket.AF_INET, resets.getsockname()), (socket.AF_INET, ("127.0.0.1", port))]

        def serve() -> None:
            connection, _ = resets.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        ends = Round(1.0).run([((0, port), Dial(places, NONCE))])
        joined(thread)
    assert ends[0, port][:2] == ("connected", None)


def test_who_dials_answers_meanwhile_and_after() -> None:
    """One thread does both while the dials go on: its own listeners are among those that it dials."""
    end = MeshEnd(NONCE.decode())
    wanted = [{"address": "127.0.0.1", "port": 0, "step": 0, "tries": 1}] * 2
    targets = [["127.0.0.1", end.listen(wanted)["ports"], NONCE.decode()]] * 3
    try:
        for dials in (end.dial, dial, end.dial, dial):
            told = dials(targets, LONG_S)
            assert (told["connected"], told["failed"]) == (6, [])
    finally:
        end.close()
    assert {row[2] for row in dial(targets, LONG_S)["failed"]} == {"refused"}


def test_an_end_that_never_dialled_closes() -> None:
    for _ in range(200):  # the word that all is over may come at any moment
        end = MeshEnd(NONCE.decode())
        end.listen([])
        end.close()


def test_a_port_on_which_another_probe_listens_first_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both bind it with SO_REUSEADDR; whoever comes second to listen(2) takes the next."""
    bound_to = mesh._bound_to
    others: list[socket.socket] = []

    def bound_twice(family: int, place: tuple[str, int]) -> socket.socket:
        mine = bound_to(family, place)
        if not others:
            others.append(bound_to(socket.AF_INET, ("127.0.0.1", mine.getsockname()[1])))
            others[0].listen()
        return mine

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        first = free.getsockname()[1]
    monkeypatch.setattr(mesh, "_bound_to", bound_twice)
    end = MeshEnd("nonce")
    opened = end.listen([{"address": "127.0.0.1", "port": first, "step": 1, "tries": 20}])
    end.close()
    others[0].close()
    assert opened["errors"] == {}
    assert opened["ports"][0] > first
