"""Every way of running a command behaves alike."""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path

import pytest

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.base import TransportKind
from nccl_doctor.transport.base import AccessError, Channel, Transport
from nccl_doctor.transport.process import ProcessChannel
from tests.patience import LONG_S, crowd, joined
from tests.transport.conftest import Make, run
from tests.transport.servers import LOOPBACK, Controller, Sshd, node, public, slow_door

pytestmark = pytest.mark.slow

KINDS: tuple[TransportKind, ...] = ("local", "paramiko", "openssh")


@pytest.fixture(params=KINDS)
def way(request: pytest.FixtureRequest, make: Make, controller: Controller, server: Sshd) -> tuple[Transport, Node]:
    controller.know(server.known())
    return make(request.param), node(server.port, local=request.param == "local")


def test_answers(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, "read word; echo got $word; printf unended; echo oops >&2; exit 3", deadline)
    channel.send(b"hello\n", deadline)
    assert [channel.read_line(deadline), channel.read_line(deadline)] == [b"got hello", b"unended"]
    assert channel.read_line(deadline) is None
    assert channel.exit_status(deadline) == 3
    assert channel.stderr_tail() == "oops\n"
    channel.close()
    channel.close()


def test_a_login_at_the_tests_own_server_reads_no_file_of_the_machines_user(
    make: Make, controller: Controller, server: Sshd, tmp_path: Path
) -> None:
    """One shell in its place finds another home, whose ~/.bashrc it would have read."""
    controller.know(server.known())
    (tmp_path / ".bashrc").write_text("echo read\n")
    line = f"SHLVL=$((SHLVL - 1)) HOME={tmp_path} exec bash -c 'echo well'"
    assert run(make("paramiko"), node(server.port), line, seconds=LONG_S) == [b"well"]


def test_big_streams_do_not_block_each_other(way: tuple[Transport, Node]) -> None:
    transport, host = way
    size = 10_000_000
    streams = f"head -c {size} /dev/zero | tr '\\0' e >&2; head -c {size} /dev/zero | tr '\\0' o; echo"
    lines = run(transport, host, f"({streams}); head -c {size} | wc -c", b"i" * size, seconds=LONG_S)
    assert [len(lines[0]), lines[1].strip()] == [size, b"%d" % size]


def test_big_input_is_taken_while_output_comes(way: tuple[Transport, Node]) -> None:
    transport, host = way
    data = b"".join(b"%07d\n" % n for n in range(400_000))
    assert (
        run(transport, host, f"head -c {len(data)} | tee /dev/stderr", data, seconds=LONG_S) == data.split(b"\n")[:-1]
    )


def test_a_program_that_fills_a_file_is_ended(tmp_path: Path) -> None:
    """As ssh's own log, of which a server decides how much it says."""
    channel = ProcessChannel(["/bin/sh", "-c", f"read go; exec yes >{tmp_path}/log"])
    channel.bound_files(1 << 20)
    channel.send(b"go\n", time.monotonic() + LONG_S)
    assert channel.exit_status(time.monotonic() + LONG_S) == 128 + signal.SIGXFSZ
    assert (tmp_path / "log").stat().st_size == 1 << 20
    channel.close()


def test_stderr_tail_is_the_end(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, "seq 10000 >&2; printf '\\377' >&2", deadline)
    assert channel.read_line(deadline) is None
    assert channel.exit_status(deadline) == 0
    assert channel.stderr_tail().endswith("\n10000\n\N{REPLACEMENT CHARACTER}")
    assert len(channel.stderr_tail()) == 8192
    channel.close()


def test_status_and_stderr_outlive_the_channel(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, "echo no such thing >&2; exit 127", deadline)
    assert channel.read_line(deadline) is None
    channel.close()
    assert channel.exit_status(deadline) == 127
    assert channel.stderr_tail() == "no such thing\n"


def test_a_silent_command_meets_the_deadline(way: tuple[Transport, Node]) -> None:
    transport, host = way
    channel = transport.open(host, "printf par; read go; echo tial; cat", time.monotonic() + LONG_S)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.read_line(started + 0.3)
    assert time.monotonic() - started < 1.0 * crowd()
    channel.send(b"\n", time.monotonic() + LONG_S)
    assert channel.read_line(time.monotonic() + LONG_S) == b"partial"
    channel.close()


def test_a_command_that_reads_nothing_meets_the_deadline(way: tuple[Transport, Node]) -> None:
    transport, host = way
    channel = transport.open(host, "sleep 30", time.monotonic() + LONG_S)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.send(b"x" * 20_000_000, started + 0.5)
    assert time.monotonic() - started < 3.0 * crowd()
    channel.close()


def test_sending_to_a_command_that_is_gone(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, "exec true", deadline)
    with pytest.raises((OSError, EOFError)) as caught:
        channel.send(b"x" * 20_000_000, deadline)
    assert not isinstance(caught.value, TimeoutError)
    channel.close()


def test_closing_ends_the_command(way: tuple[Transport, Node], tmp_path: Path) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, f"echo here; cat; echo gone > {tmp_path}/end", deadline)
    assert channel.read_line(deadline) == b"here"
    channel.close()
    while not (tmp_path / "end").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_another_thread_may_close(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel: Channel = transport.open(host, "exec cat", deadline)
    threading.Timer(0.2, channel.close).start()
    assert channel.read_line(deadline) is None
    assert deadline - time.monotonic() > LONG_S - 15 * crowd()


@pytest.mark.parametrize("ending", ["the limit passes", "the run is interrupted"])
def test_a_command_whose_start_nobody_has_confirmed_is_hung_up_on(
    ending: str, make: Make, controller: Controller, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """sshd may have started it: without the signal, a login shell that waits for something stays there for ever."""
    caplog.set_level(logging.DEBUG, "paramiko.slow_door")
    with slow_door(keys / "host_ed25519", "paramiko.slow_door") as (port, door):
        controller.know(f"[{LOOPBACK}]:{port} {public(keys / 'host_ed25519')}\n")
        transport, limit = make("paramiko"), 3.0 * crowd() if ending == "the limit passes" else LONG_S
        fails: list[AccessError] = []

        def opens() -> None:
            try:
                transport.open(node(port), "sleep 777", time.monotonic() + limit, time.monotonic() + limit)
            except AccessError as error:
                fails.append(error)

        opening = threading.Thread(target=opens, daemon=True)
        opening.start()
        assert door.asked.wait(LONG_S)
        if ending == "the run is interrupted":
            transport.close()
        joined(opening)
        door.starts.set()
        until = time.monotonic() + LONG_S
        while not any('Unhandled channel request "signal"' in line for line in caplog.messages):
            assert time.monotonic() < until, caplog.messages
            time.sleep(0.01)
        assert [error.failure.kind for error in fails] == ["ssh-unreachable"]


def test_nothing_starts_once_the_run_has_ended(make: Make, controller: Controller, server: Sshd) -> None:
    controller.know(server.known())
    transport = make("paramiko")
    transport.open(node(server.port), "exec true", time.monotonic() + LONG_S).close()
    transport.close()
    with pytest.raises(AccessError):
        transport.open(node(server.port), "exec true", time.monotonic() + LONG_S)


def test_signals_and_exit_status(way: tuple[Transport, Node]) -> None:
    transport, host = way
    deadline = time.monotonic() + LONG_S
    channel = transport.open(host, "kill -9 $$", deadline)
    assert channel.read_line(deadline) is None
    assert channel.exit_status(deadline) != 0
    channel.close()


def test_local_commands_leave_nothing_behind(make: Make, tmp_path: Path) -> None:
    deadline = time.monotonic() + LONG_S
    channel = make("local").open(node(22, local=True), "sleep 300 & echo $!; trap '' TERM; exec sleep 300", deadline)
    child = channel.read_line(deadline)
    assert child is not None
    channel.close()
    assert (
        not Path(f"/proc/{child.decode()}/cmdline").exists() or not Path(f"/proc/{child.decode()}/cmdline").read_bytes()
    )
