"""A probe that runs for real, on this machine."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.collect.facts.host_facts import _packed
from nccl_doctor.crew import answers
from nccl_doctor.crew import session as sessions
from nccl_doctor.crew import start as bundle
from nccl_doctor.crew.answers import ConnectionLostError, ControllerPausedError, ProbeError
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.crew.start import SILENT
from nccl_doctor.model.cluster import Node
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from tests.collect.nodes import interpreter, node
from tests.patience import LONG_S, crowd


def opened(where: Node, seconds: float = LONG_S) -> ProbeSession:
    return ProbeSession.open(LocalTransport(), where, time.monotonic() + seconds, lifetime_s=30)


def refused(where: Node, seconds: float = LONG_S) -> Any:
    with pytest.raises(AccessError) as caught:
        opened(where, seconds)
    return caught.value.failure


READY = """printf '%s{}\\n' "$(printf %s "$4" | sed "s/.*print('\\([0-9a-f]*\\)'.*/\\1/" | rev)\""""
"""What the loader, the third word behind the interpreter, says first."""


@pytest.fixture
def session() -> Iterator[ProbeSession]:
    session = opened(node())
    yield session
    session.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + LONG_S
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_the_probe_says_who_it_is(session: ProbeSession) -> None:
    assert session.hello.python == ".".join(map(str, sys.version_info[:3]))
    assert abs(session.ask(answers.CLOCK, time.monotonic() + LONG_S) - time.time()) < 5


class Lossy(LocalTransport):
    """A channel that loses bytes of what is sent first, as one to a pod did; others come later in their place."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
        channel = super().open(node, command, deadline, latest)
        send = channel.send
        monkey: Any = channel
        monkey.send = lambda data, until: send(data[:5000] + data[5100:] + bytes(100), until)
        return channel


def test_a_probe_that_lost_bytes_on_its_way_is_said_to_be_damaged() -> None:
    with pytest.raises(AccessError) as caught:
        ProbeSession.open(Lossy(), node(), time.monotonic() + LONG_S, lifetime_s=30)
    assert "the probe came damaged: the way to" in caught.value.failure.detail


def test_it_leaves_with_its_connection(session: ProbeSession) -> None:
    assert alive(session.hello.pid)
    session.close()
    assert_gone(session.hello.pid)


def test_a_request_that_fails_brings_its_real_traceback(session: ProbeSession) -> None:
    with pytest.raises(ProbeError, match="KeyError") as caught:
        session.ask(answers.FACTS, time.monotonic() + LONG_S)
    assert "nccl_doctor/probe/" in (caught.value.traceback or "")
    assert session.ask(answers.CLOCK, time.monotonic() + LONG_S)


def test_a_probe_that_is_killed_ends_the_wait(session: ProbeSession) -> None:
    os.kill(session.hello.pid, signal.SIGKILL)
    with pytest.raises(ProbeError, match="connection"):
        session.ask(answers.CLOCK, time.monotonic() + LONG_S)


def test_no_answer_ends_at_the_deadline(session: ProbeSession) -> None:
    os.kill(session.hello.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(ProbeError, match="no answer in time"):
        session.ask(answers.CLOCK, began + 0.3)
    assert time.monotonic() - began < 5 * crowd()
    os.kill(session.hello.pid, signal.SIGCONT)


def test_an_answer_that_comes_late_is_not_taken_for_the_next(session: ProbeSession) -> None:
    deadline = time.monotonic() + LONG_S
    first = session.send(answers.CLOCK, deadline)
    second = session.send(answers.FACTS, deadline, names=_packed({}), deadline_s=3, trial_port=None)
    assert "identity" in session.wait(answers.FACTS, second, deadline)
    assert isinstance(session.wait(answers.CLOCK, first, deadline), float)


def test_its_lifetime_is_bounded_by_the_kernel() -> None:
    for lifetime_s in (0.5, 5.0, 50.0):  # on a busy machine it is over before the first word
        with contextlib.suppress(AccessError):
            session = ProbeSession.open(LocalTransport(), node(), time.monotonic() + LONG_S, lifetime_s)
            break
    assert_gone(session.hello.pid)
    session.close()


def test_every_channel_gets_an_empty_line_again_and_again() -> None:
    channel = ProcessChannel(["cat"])
    sessions.heartbeat.begin()
    sessions.heartbeat.add(channel)
    assert [channel.read_line(time.monotonic() + LONG_S) for _ in range(2)] == [b"", b""]
    sessions.heartbeat.remove(channel)
    channel.close()


@pytest.mark.parametrize(
    ("still_s", "error", "words"),
    [
        (0.0, ConnectionLostError, "heard nothing from this machine"),
        (63.0, ControllerPausedError, "this machine was unresponsive for 63 s"),
    ],
)
def test_a_probe_that_hears_nothing_ends_what_it_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, still_s: float, error: type[ConnectionLostError], words: str
) -> None:
    monkeypatch.setattr(sessions.heartbeat, "add", lambda _channel: None)
    monkeypatch.setattr(sessions.heartbeat, "longest_gap", lambda _since: still_s)
    session = ProbeSession.open(
        LocalTransport(), node(), time.monotonic() + LONG_S, 300, silence_s=sessions.MARGIN_S + 1
    )
    assert_gone(session.hello.pid)
    with pytest.raises(error, match=words):
        session.ask(answers.CLOCK, time.monotonic() + LONG_S)
    assert isinstance(session.lost, error)
    session.close()


def test_a_host_that_stands_still_itself_does_not_take_us_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.heartbeat, "add", lambda _channel: None)
    for silence_s in (0.2, 2.0, 20.0):  # on a busy machine the first may be over before it stands still
        session = ProbeSession.open(LocalTransport(), node(), time.monotonic() + LONG_S, 300, silence_s=silence_s)
        with contextlib.suppress(ConnectionLostError), contextlib.closing(session):
            os.kill(session.hello.pid, signal.SIGSTOP)
            over = time.monotonic() + silence_s
            number = session.send(answers.CLOCK, time.monotonic() + LONG_S)
            while (left := over - time.monotonic()) >= 0:
                time.sleep(left + 0.001)
            os.kill(session.hello.pid, signal.SIGCONT)
            assert session.wait(answers.CLOCK, number, time.monotonic() + LONG_S)
            return
    pytest.fail("it took us for gone each time")


@pytest.mark.parametrize("magic", [MAGIC_NUMBER, b"old\n"])
def test_tracebacks_show_lines_whether_the_host_runs_our_bytecode_or_compiles(
    magic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MAGIC_NUMBER", magic)
    made = bundle.bundle.__wrapped__()  # type: ignore[attr-defined]  # functools.wraps leaves it
    monkeypatch.setattr(bundle, "bundle", lambda: made)
    session = opened(node())
    with pytest.raises(ProbeError, match="KeyError: 'targets'") as caught:
        session.ask(answers.DIAL, time.monotonic() + LONG_S)
    session.close()
    assert 'File "<probe>/nccl_doctor/probe/main.py", line ' in (caught.value.traceback or "")
    assert 'request["targets"]' in (caught.value.traceback or "")


@pytest.mark.parametrize("part", [0, 5000])
def test_where_the_link_is_gone_before_the_probe_came_the_loader_ends(part: int) -> None:
    command = ["/bin/sh", "-c", bundle.command(sys.executable, "ab12", 1)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as loader:
        assert loader.stdin is not None
        assert loader.stderr is not None
        loader.stdin.write(bundle.bundle()[:part])
        loader.stdin.flush()
        assert loader.wait(LONG_S) == 1
        assert SILENT in loader.stderr.read().decode()


def test_a_pause_that_the_host_outlived_is_no_excuse_for_what_comes_later(
    session: ProbeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host that dies must not stop the run because this machine stood still long before."""
    paused = sessions.now()
    monkeypatch.setattr(sessions.heartbeat, "longest_gap", lambda since: 63.0 if since < paused else 0.0)
    assert session.ask(answers.CLOCK, time.monotonic() + LONG_S)
    assert not isinstance(session.gone(ConnectionLostError("the connection ended")), ControllerPausedError)


def test_a_loader_that_we_left_alone_is_not_told_as_a_path_that_loses_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions.heartbeat, "longest_gap", lambda _since: 63.0)
    failure = refused(node(interpreter(tmp_path, f"{READY}\necho '{SILENT}' >&2; exit 1")))
    assert "this machine was unresponsive for 63 s" in failure.detail
    assert failure.facts.ran_out_of_time


def test_a_loader_that_heard_nothing_is_tried_again(tmp_path: Path) -> None:
    failure = refused(node(interpreter(tmp_path, f"echo '{SILENT}' >&2; exit 1")))
    assert failure.facts.ran_out_of_time


def test_noise_before_and_between_does_no_harm(tmp_path: Path) -> None:
    noise = 'echo "Welcome!"; printf "no newline {\\"id\\": 1}"; echo warning >&2; exec "$PYTHON" "$@"'
    session = opened(node(interpreter(tmp_path, noise)))
    assert session.ask(answers.CLOCK, time.monotonic() + LONG_S)
    session.close()


def test_no_interpreter() -> None:
    failure = refused(node("/opt/none/bin/python"))
    assert failure.kind == "python-missing"
    assert failure.facts.python == "/opt/none/bin/python"


def test_an_interpreter_that_hangs(tmp_path: Path) -> None:
    began = time.monotonic()
    failure = refused(node(interpreter(tmp_path, "sleep 60")), 0.5)
    assert (failure.kind, failure.facts.stage, failure.facts.ran_out_of_time) == ("probe-failed", "start", True)
    assert "did not start in time" in failure.detail
    assert time.monotonic() - began < 10 * crowd()


def test_an_interpreter_that_breaks_shows_its_words(tmp_path: Path) -> None:
    failure = refused(node(interpreter(tmp_path, "echo 'libpython3.so: cannot open' >&2; exit 1")))
    assert failure.kind == "probe-failed"
    assert any("libpython3.so" in line for line in failure.evidence)


def test_an_interpreter_that_is_too_old_is_told_so(tmp_path: Path) -> None:
    old = "import sys; sys.version_info = (3, 6, 15, 'final', 0);"
    script = f'loader="{old}$4"; exec "$PYTHON" "$1" "$2" "$3" "$loader"'
    failure = refused(node(interpreter(tmp_path, script)))
    assert (failure.kind, failure.facts.problem) == ("python-missing", "too-old")
    assert failure.detail.endswith("is Python 3.6.15, and 3.8 or later is needed")


def test_a_login_that_runs_something_else_is_sent_no_program(tmp_path: Path) -> None:
    """A shell in the interpreter's place would run the program's bytes as commands."""
    received = tmp_path / "received"
    failure = refused(node(interpreter(tmp_path, f"exec tee {received}")), 0.5)
    assert (failure.facts.stage, failure.facts.ran, received.read_bytes()) == ("start", False, b"")


def test_hostile_interpreter_names_are_quoted(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    assert refused(node(f"/nowhere/python; touch {trap} #$(touch {trap})`touch {trap}`")).kind == "python-missing"
    assert not trap.exists()


def test_a_tilde_is_the_hosts_home() -> None:
    assert "; exec ~/'venv/bin/my python' -I -S -c " in bundle.command("~/venv/bin/my python", "ab12", 8)


def test_nothing_of_the_python_environment_shadows_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    session = opened(node())
    assert session.ask(answers.CLOCK, time.monotonic() + LONG_S)
    session.close()
