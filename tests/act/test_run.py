"""The steps of ``fix`` against a real /bin/sh of this machine: looks, the record, undo, interrupts, lock-outs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.act import record
from nccl_doctor.act.plan import undo_plan
from nccl_doctor.act.record import Journal, Record, all_open, latest
from nccl_doctor.act.root import RootAccess, read_root_access
from nccl_doctor.act.run import Execution
from nccl_doctor.act.shell import ANSWER_S
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.acts import Machine, Step, StepResult
from nccl_doctor.model.operation import Operation
from nccl_doctor.transport.process import LocalTransport
from tests.act.operations import ByRoot, Outdated, Risky, Text, step
from tests.collect.nodes import node
from tests.patience import LONG_S

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def no_shell(one: Step) -> StepResult:
    raise AssertionError(one)


def execution(journal: Journal | None = None, transport: Any = None) -> Execution:
    nodes = {"a": node(name="a"), "b": node(name="b")}
    return Execution(nodes, transport or LocalTransport(), {}, no_shell, journal)


def run(*steps: Step, journal: Journal | None = None, transport: Any = None) -> list[StepResult]:
    return execution(journal, transport).run(steps)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.begin("abc", "hosts.yaml", None, {"XDG_STATE_HOME": str(tmp_path / "state")})


def written(file: Path, text: str) -> Text:
    """The operation that writes a line into a file, if the file has another one."""
    return Text(f"echo {text} > {file}", f"cat {file}", text, f"echo BEFORE > {file}")


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
    (result,) = run(step(Text(f"echo $$ > {pid}; sleep 1000; true", seconds=1.0)))
    assert (result.outcome, result.reason) == ("failed", "it did not end in 1 second, and was ended")
    assert not Path(f"/proc/{pid.read_text(encoding='ascii').strip()}").exists()


def test_a_command_that_floods_fails() -> None:
    (result,) = run(step(Text("yes", seconds=LONG_S)))
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


def test_what_is_there_already_is_not_run_and_not_undone(tmp_path: Path, journal: Journal) -> None:
    file = tmp_path / "file"
    file.write_text("new\n", encoding="ascii")
    (result,) = run(step(Text("exit 1", f"cat {file}", "new", "exit 1")), journal=journal)
    assert (result.outcome, result.was_there) == ("done", True)
    assert journal.record.steps == ()


def test_what_could_not_be_looked_at_is_not_changed(tmp_path: Path, journal: Journal) -> None:
    file = tmp_path / "file"
    (result,) = run(step(Text(f"touch {file}", "echo no such program; exit 3", "x", "true")), journal=journal)
    assert (result.outcome, result.reason) == (
        "failed",
        "it could not be looked at, so nothing was changed: no such program",
    )
    assert (file.exists(), journal.record.steps) == (False, ())


def test_a_command_that_ends_well_without_its_change_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    (result,) = run(step(Text("true", f"cat {file}", "new", "true")))
    assert (result.outcome, result.reason) == ("failed", "the command ended well, but its change is not there")


def test_what_somebody_changed_since_the_check_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("theirs\n", encoding="ascii")
    (result,) = run(step(Outdated(f"echo new > {file}", f"cat {file}", "new", "true")))
    assert (result.outcome, result.reason) == ("changed", "somebody else has changed it since it was checked")
    assert file.read_text(encoding="ascii") == "theirs\n"


def test_a_state_of_many_and_long_lines_is_kept_whole(tmp_path: Path, journal: Journal) -> None:
    file = tmp_path / "file"
    lines = [f"{number} {'x' * 400}" for number in range(200)]
    file.write_text("\n".join(lines) + "\n", encoding="ascii")
    run(step(Text(f"echo new > {file}", f"cat {file}", "new", "true")), journal=journal)
    (ran,) = journal.record.steps
    assert ran.before == tuple(lines)


def test_a_state_with_the_password_in_it_is_not_recorded(tmp_path: Path, journal: Journal) -> None:
    """Its undo would say "***", or tell the password."""
    file = tmp_path / "file"
    file.write_text("30000-30010\n", encoding="ascii")
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nread -r _\nwhile [ "$1" != /bin/sh ]; do shift; done\nexec "$@"\n', encoding="ascii")
    sudo.chmod(0o755)
    roots: dict[str | None, RootAccess] = {"a": RootAccess("password", str(sudo))}
    change = ByRoot(f"echo new > {file}", f"cat {file}", "new", "true")
    ours = Execution({"a": node(name="a")}, LocalTransport(), roots, no_shell, journal, b"30000")
    (result,) = ours.run([step(change)])
    assert (result.outcome, result.reason) == (
        "failed",
        "its present value contains the password, so nothing was changed",
    )
    assert (file.read_text(encoding="ascii"), journal.record.steps) == ("30000-30010\n", ())


def test_the_record_is_written_before_and_after_the_step(tmp_path: Path, journal: Journal) -> None:
    """The command itself sees its entry: with what was there before, and how to undo it."""
    file, seen = tmp_path / "file", tmp_path / "seen"
    file.write_text("old\n", encoding="ascii")
    change = Text(f"cp {journal.path} {seen}; echo new > {file}", f"cat {file}", "new", f"echo BEFORE > {file}")
    run(step(change), journal=journal)
    (begun,) = Record.model_validate_json(seen.read_bytes()).steps
    assert (begun.outcome, begun.before, begun.after, begun.undo) == ("unknown", ("old",), None, f"echo old > {file}")
    assert begun.machine.boot_id == BOOT_ID
    (ended,) = Record.model_validate_json(journal.path.read_bytes()).steps
    assert (ended.outcome, ended.before, ended.after) == ("done", ("old",), ("new",))


def undone(kept: Record, **machine: str) -> list[StepResult]:
    """What an undo makes of a record, on another machine where that is given."""
    steps = undo_plan(kept.steps, kept.file)
    if machine:
        other = Machine(**machine)
        steps = tuple(
            s.model_copy(update={"undoes": s.undoes.model_copy(update={"machine": other})}) for s in steps if s.undoes
        )
    return run(*steps)


def test_an_undo_restores_what_was_there_and_is_over(tmp_path: Path, journal: Journal) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    (result,) = undone(journal.record)
    assert (result.outcome, result.over, file.read_text(encoding="ascii")) == ("done", True, "old\n")


@pytest.mark.parametrize(
    ("now", "reason", "over"),
    [("theirs", "somebody else has changed it since", False), ("old", "it is not there any more", True)],
)
def test_an_undo_leaves_alone_what_was_changed_since(
    tmp_path: Path, journal: Journal, now: str, reason: str, over: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    file.write_text(f"{now}\n", encoding="ascii")
    (result,) = undone(journal.record)
    assert (result.outcome, result.reason, result.over) == ("changed", reason, over)
    assert file.read_text(encoding="ascii") == f"{now}\n"


@pytest.mark.parametrize(
    ("machine", "reason", "over"),
    [
        ({"machine_id": "f" * 32}, "another machine has this host's name now", False),
        ({"boot_id": "another"}, "it was lost when the host was restarted", True),
    ],
)
def test_an_undo_looks_at_the_machine(
    tmp_path: Path, journal: Journal, machine: dict[str, str], reason: str, over: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    (result,) = undone(journal.record, **machine)
    assert (result.outcome, result.reason, result.over) == ("changed", reason, over)
    assert file.read_text(encoding="ascii") == "new\n"


def test_an_undo_that_can_not_look_ends_nothing(tmp_path: Path, journal: Journal) -> None:
    """As where nft is missing by now, or firewalld stands still."""
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    file.unlink()
    (result,) = undone(journal.record)
    assert (result.outcome, result.over) == ("failed", False)
    assert "could not be looked at" in result.reason


WRITES = [0, 1, 2, 3]


class Killed(BaseException):
    """The end of the process, as SIGKILL makes it."""


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("late", [False, True], ids=["before the write", "after it"])
def test_a_kill_between_any_two_writes_loses_no_undo(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, writes: int, late: bool
) -> None:
    files = [tmp_path / name for name in ("first", "second")]
    for file in files:
        file.write_text("old\n", encoding="ascii")
    real, count = record._write, 0

    def write(path: Path, kept: Record) -> None:
        nonlocal count
        dies = count == writes
        count += 1
        if not dies or late:
            real(path, kept)
        if dies:
            raise Killed

    monkeypatch.setattr(record, "_write", write)
    with pytest.raises(Killed):
        run(*(step(written(file, "new"), number) for number, file in enumerate(files, 1)), journal=journal)
    monkeypatch.setattr(record, "_write", real)
    kept = latest("abc", {"XDG_STATE_HOME": str(tmp_path / "state")})
    results = undone(kept.record) if kept is not None else []
    assert all(result.over for result in results), results
    assert [file.read_text(encoding="ascii") for file in files] == ["old\n", "old\n"]


class ClosingDoor(LocalTransport):
    """A host that takes no further connection once ``closed`` says so."""

    def __init__(self, closed: Callable[[], bool]) -> None:
        super().__init__()
        self.closed = closed

    def open(self, *arguments: Any, **more: Any) -> Any:
        if self.closed():
            raise EOFError("no answer")
        return super().open(*arguments, **more)


def door(file: Path, text: str, kind: type[Text] = Risky) -> Operation:
    return kind(f"echo {text} > {file}", f"cat {file}", text, f"echo BEFORE > {file}")


def test_what_keeps_a_second_connection_out_is_taken_back_over_the_first(tmp_path: Path, journal: Journal) -> None:
    first, second, other = tmp_path / "first", tmp_path / "second", tmp_path / "other"
    for file in (first, second, other):
        file.write_text("old\n", encoding="ascii")
    steps = [step(door(first, "new")), step(door(other, "new", Text), 2), step(door(second, "new"), 3)]
    results = run(*steps, journal=journal, transport=ClosingDoor(lambda: second.read_text() == "new\n"))
    assert [one.outcome for one in results] == ["failed", "done", "failed"]
    assert results[0].reason == "no second connection could be opened after it, so it was taken back"
    assert [file.read_text(encoding="ascii") for file in (first, other, second)] == ["old\n", "new\n", "old\n"]
    assert [one.can_be_undone for one in journal.record.steps] == [False, True, False]


@pytest.mark.parametrize("undoing", [False, True])
def test_a_host_takes_back_by_itself_what_nobody_kept(tmp_path: Path, journal: Journal, undoing: bool) -> None:
    """A second Ctrl-C, a kill, or a lost connection while it is tried whether SSH still comes in."""
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    steps = [step(door(file, "new"))]
    if undoing:
        run(*steps, journal=journal)
        steps = list(undo_plan(journal.record.steps, None))
    text, changed = file.read_text(), threading.Event()

    def wait_at_the_door() -> bool:
        if file.read_text() != text:
            changed.set()
            time.sleep(1.0)
        return False

    ours = execution(None if undoing else journal, ClosingDoor(wait_at_the_door))
    thread = threading.Thread(target=ours.run, args=(steps,))
    thread.start()
    assert changed.wait(LONG_S)
    ours.abandon()
    thread.join(LONG_S)
    deadline = time.monotonic() + LONG_S
    while file.read_text() != text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert file.read_text() == text


@pytest.mark.parametrize("full_from", [1, 2, 3])
def test_a_record_that_can_not_be_written_leaves_no_host_locked_out(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, full_from: int
) -> None:
    """The disk is full from one of the writes on: the door is tried all the same."""
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    writes, real = iter(range(1, 9)), record._write

    def write(path: Path, text: Record) -> None:
        if next(writes) >= full_from:
            raise DoctorError(f"{path}: can't be written: No space left on device")
        real(path, text)

    monkeypatch.setattr(record, "_write", write)
    transport = ClosingDoor(lambda: file.read_text() == "new\n")
    (result,) = run(step(door(file, "new")), journal=journal, transport=transport)
    assert (file.read_text(encoding="ascii"), result.outcome) == ("old\n", "failed")
    assert ("nothing was changed" in result.reason) is (full_from == 1)


def test_an_undo_that_keeps_connections_out_is_done_again(tmp_path: Path, journal: Journal) -> None:
    file = tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(door(file, "new")), journal=journal)
    transport = ClosingDoor(lambda: file.read_text() == "old\n")
    (result,) = run(*undo_plan(journal.record.steps, None), transport=transport)
    assert (result.outcome, result.over, file.read_text(encoding="ascii")) == ("failed", False, "new\n")


def test_a_connection_that_ends_takes_the_command_with_it(tmp_path: Path) -> None:
    pid, ended = tmp_path / "pid", tmp_path / "ended"
    hanging = step(f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000; touch {ended}")
    results: list[StepResult] = []
    ours = execution()
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
    ours = execution()

    def stop() -> None:
        wait_for(began)
        ours.stop.set()

    threading.Thread(target=stop).start()
    results = ours.run([step(f"touch {began}; sleep 1; touch {ended}"), step(f"touch {second}", 2)])
    assert [(one.outcome, one.reason) for one in results] == [("done", ""), ("not-run", "interrupted before it")]
    assert (ended.exists(), second.exists()) == (True, False)


def test_many_long_commands_are_run() -> None:
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


SUDO = "/usr/bin/sudo"


@pytest.mark.parametrize(
    ("lines", "way", "reason"),
    [
        (["0", f"status 0 {SUDO}"], "login", ""),
        (["0", "status none"], "login", ""),
        (["Welcome", "1000", f"status 0 {SUDO}"], "sudo", ""),
        (["1000", "sudo: a password is required", f"status 1 {SUDO}"], "password", ""),
        (["1000", "sudo: interactive authentication is required", f"status 1 {SUDO}"], "password", ""),
        (["1000", "sudo: Interaction is required", f"status 1 {SUDO}"], "password", ""),
        (["1000", "alice may not", f"status 1 {SUDO}"], "none", "the login is not root, and sudo says: alice may not"),
        (["1000", f"status 1 {SUDO}"], "none", "the login is not root, and sudo fails"),
        (["1000", "status 0 /tmp/sudo"], "none", "the login is not root, and there is no sudo of root's"),
        (["1000", "status none"], "none", "the login is not root, and there is no sudo of root's"),
        ([], "none", "the login is not root, and there is no sudo of root's"),
    ],
)
def test_the_way_to_root(lines: list[str], way: str, reason: str) -> None:
    found = read_root_access(lines)
    assert (found.way, found.reason) == (way, reason)
    assert found.sudo in ("", SUDO)


@pytest.mark.parametrize(
    "message", ["Sorry, try again.", "sudo: 1 incorrect password attempt", "sudo: Authentication failed, try again."]
)
def test_a_wrong_password_is_told_at_once(tmp_path: Path, message: str) -> None:
    """As sudo, or sudo-rs, tells it, and then waits for another password."""
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\nread -r _\necho "{message}" >&2\nread -r _\n', encoding="ascii")
    sudo.chmod(0o755)
    roots: dict[str | None, RootAccess] = {"a": RootAccess("password", str(sudo))}
    began = time.monotonic()
    ours = Execution({"a": node(name="a")}, LocalTransport(), roots, no_shell, None, b"wrong")
    (result,) = ours.run([step(ByRoot("true"))])
    assert (result.outcome, result.reason) == ("not-run", "sudo did not accept the password on a")
    assert time.monotonic() - began < ANSWER_S


def test_a_record_is_its_owners_alone_and_is_found_again(tmp_path: Path, journal: Journal) -> None:
    environ, file = {"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path / "file"
    assert latest("abc", environ) is None  # nothing to undo
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700
    assert latest("other", environ) is None
    found = latest("abc", environ)
    assert found is not None
    assert (found.path, found.record) == (journal.path, journal.record)
    found.mark(1, undone=True)
    assert latest("abc", environ) is None


def test_a_run_without_anything_to_undo_hides_no_earlier_one(tmp_path: Path, journal: Journal) -> None:
    environ, file = {"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path / "file"
    file.write_text("old\n", encoding="ascii")
    run(step(written(file, "new")), journal=journal)
    for operation in (written(file, "new"), Text("true")):  # was there; can't be undone
        run(step(operation), journal=Journal.begin("abc", "hosts.yaml", None, environ))
    found = latest("abc", environ)
    assert found is not None
    assert found.path == journal.path
    newer = Journal.begin("abc", "hosts.yaml", None, environ)
    file.write_text("newer\n", encoding="ascii")
    run(step(written(file, "newest")), journal=newer)
    assert [one.began_at for one in all_open(environ)] == sorted((newer.record.began_at, journal.record.began_at))[::-1]
    newer.mark(1, left=True)  # somebody else had changed it
    found = latest("abc", environ)
    assert found is not None
    assert found.path == journal.path
    journal.mark(1, undone=True)
    found = latest("abc", environ)
    assert found is not None
    assert found.path == newer.path


def test_a_record_of_another_release_is_passed_over(tmp_path: Path, journal: Journal) -> None:
    journal.path.write_text('{"hosts": 7}', encoding="utf-8")
    assert latest("abc", {"XDG_STATE_HOME": str(tmp_path / "state")}) is None


def test_no_place_for_a_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "nccl-doctor").write_text("a file", encoding="utf-8")
    with pytest.raises(DoctorError, match="can't be created"):
        latest("abc", {"XDG_STATE_HOME": str(tmp_path)})


def test_a_planted_link_or_folder_is_no_place_for_a_record(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "nccl-doctor").symlink_to(theirs)
    with pytest.raises(DoctorError, match="another user's, or a link"):
        Journal.begin("abc", "hosts.yaml", None, {"XDG_STATE_HOME": str(tmp_path)})
