"""The shell that runs the steps of ``fix``, against a real /bin/sh of this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from nccl_doctor.collect.mending.record import Record, begin, finish, latest, mark_undone
from nccl_doctor.collect.mending.root import read_root_access
from nccl_doctor.collect.mending.steps import Mending
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.mending import Step, StepResult
from nccl_doctor.transport.process import LocalTransport
from tests.collect.nodes import node
from tests.patience import LONG_S

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def step(command: str, number: int = 1, **fields: object) -> Step:
    return Step.model_validate(
        {"number": number, "host": "a", "command": command, "code": "NCD301", "mends": "x"} | fields
    )


def mending() -> Mending:
    return Mending({"a": node("a"), "b": node("b")}, LocalTransport(), {})


def run(*steps: Step) -> list[StepResult]:
    return mending().run(steps)


def test_steps_run_in_their_order_and_tell_their_output(tmp_path: Path) -> None:
    file = tmp_path / "log"
    commands = [f"echo {word} >> {file}; cat {file}" for word in ("one", "two", "it\\'s")]
    results = run(*(step(command, number) for number, command in enumerate(commands, 1)))
    assert [(one.outcome, one.exit_code, one.output) for one in results] == [
        ("done", 0, "one"),
        ("done", 0, "one\ntwo"),
        ("done", 0, "one\ntwo\nit's"),
    ]
    assert all(one.at for one in results)


def test_the_first_failure_ends_a_host_and_no_other(tmp_path: Path) -> None:
    made = tmp_path / "made"
    results = run(step("echo no >&2; exit 3"), step(f"touch {made}", 2), step("true", 3, host="b"))
    assert [(one.outcome, one.exit_code) for one in results] == [("failed", 3), ("not-run", None), ("done", 0)]
    assert results[0].output == "no"
    assert results[1].reason == "a step before it did not succeed"
    assert not made.exists()


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (result,) = run(step(f"echo $$ > {pid}; sleep 1000; true", deadline_s=1.0))
    assert (result.outcome, result.reason) == ("failed", "it did not end in 1 second, and was ended")
    assert not Path(f"/proc/{pid.read_text(encoding='ascii').strip()}").exists()


def test_a_command_that_floods_fails() -> None:
    (result,) = run(step("yes", deadline_s=LONG_S))
    assert result.outcome == "failed"
    assert "more than was asked for" in result.reason


def test_escape_sequences_of_an_output_are_not_kept() -> None:
    (result,) = run(step("printf '\\033[31mred\\007\\n'"))
    assert result.output == "red"


def test_a_restarted_host_is_not_touched(tmp_path: Path) -> None:
    made = tmp_path / "made"
    same, other = step("true", boot_id=BOOT_ID), step(f"touch {made}", 2, boot_id="another", host="b")
    results = run(same, other)
    assert [one.outcome for one in results] == ["done", "changed"]
    assert not made.exists()


def test_values_before_and_what_was_there_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    first, second = run(
        step(f"echo new > {file}", reads=f"cat {file}", in_place=f"grep -q new {file}"),
        step(f"echo new > {file}", 2, in_place=f"grep -q new {file}"),
    )
    assert (first.before, first.was_there, second.was_there) == (("old",), False, True)


def test_a_way_back_leaves_alone_what_was_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("theirs\n", encoding="ascii")
    (result,) = run(step(f"rm {file}", in_place=f"grep -qx ours {file}", takes_back=1))
    assert (result.outcome, result.reason) == ("changed", "it is no longer as it was left")
    assert file.exists()


def test_a_connection_that_ends_takes_the_command_with_it(tmp_path: Path) -> None:
    pid, ended = tmp_path / "pid", tmp_path / "ended"
    hanging = step(f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000; touch {ended}")
    results: list[StepResult] = []
    ours = mending()
    thread = threading.Thread(target=lambda: results.extend(ours.run([hanging, step("true", 2)])))
    thread.start()
    wait_for(pid)
    ours.abandon()
    thread.join(LONG_S)
    assert [one.outcome for one in results] == ["unknown", "not-run"]
    deadline = time.monotonic() + LONG_S
    running = Path(f"/proc/{pid.read_text(encoding='ascii').strip()}")
    while running.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (running.exists(), ended.exists()) == (False, False)


def test_an_interrupt_ends_after_the_running_command(tmp_path: Path) -> None:
    began, ended, second = tmp_path / "began", tmp_path / "ended", tmp_path / "second"
    ours = mending()

    def stop() -> None:
        wait_for(began)
        ours.stop.set()

    threading.Thread(target=stop).start()
    results = ours.run([step(f"touch {began}; sleep 1; touch {ended}"), step(f"touch {second}", 2)])
    assert [(one.outcome, one.reason) for one in results] == [("done", ""), ("not-run", "interrupted before it")]
    assert (ended.exists(), second.exists()) == (True, False)


def test_many_long_commands_are_run_by_several_shells() -> None:
    results = run(*(step(f"true {'x' * 30_000}", number) for number in range(1, 9)))
    assert [one.outcome for one in results] == ["done"] * 8


def test_no_root_no_step() -> None:
    (result,) = run(step("true", root=True))
    assert (result.outcome, result.reason) == ("not-run", "it needs root: neither the login nor sudo gives it")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + LONG_S
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("lines", "way"),
    [
        (["0", "status 0"], "login"),
        (["Welcome", "1000", "status 0"], "sudo"),
        (["1000", "sudo: a password is required", "status 1"], "password"),
        (
            ["1000", "/bin/sh: sudo: not found", "status 127"],
            "the login is not root, and sudo says: /bin/sh: sudo: not found",
        ),
        (["1000", "status 1"], "the login is not root, and sudo fails"),
        ([], "the login is not root, and sudo fails"),
    ],
)
def test_the_way_to_root(lines: list[str], way: str) -> None:
    assert read_root_access(lines) == way


def test_a_record_is_its_owners_alone_and_is_found_again(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    one = step("sysctl -w a.b=1", boot_id="boot", settings={"A": "b"})
    done = StepResult(number=1, host="a", outcome="done", exit_code=0, before=("7",), at="2026-01-01T00:00:00+00:00")
    path, begun = begin("abc", "hosts.yaml", [one], "hosts.yaml", environ)
    known = latest("abc", environ)
    assert known is not None
    assert known[1].steps[0].outcome == "unknown"  # as where we are killed in the middle
    finish(path, begun, [(one, done)], {"A": None})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert latest("other", environ) is None
    found = latest("abc", environ)
    assert found is not None
    assert found[0] == path
    again, result = found[1].steps[0].parts()
    assert (again.command, again.boot_id, again.settings, result) == (one.command, "boot", {"A": "b"}, done)
    mark_undone(path, found[1], [1])
    assert latest("abc", environ) is None


def test_a_record_of_another_release_is_passed_over(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    begin("abc", "hosts.yaml", [], None, environ)
    (file,) = (tmp_path / "nccl-doctor" / "fix").iterdir()
    file.write_text('{"hosts": 7}', encoding="utf-8")
    assert latest("abc", environ) is None
    assert Record.model_fields.keys() >= {"hosts", "steps"}


def test_no_place_for_a_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "nccl-doctor").write_text("a file", encoding="utf-8")
    with pytest.raises(DoctorError, match="can't be created"):
        latest("abc", {"XDG_STATE_HOME": str(tmp_path)})
