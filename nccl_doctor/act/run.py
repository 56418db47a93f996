"""Runs and records the steps of a plan, in parallel on all hosts and in order on each host.

Each step first reads the state that the step would change. If the state is already as desired or can't be read, nothing
is changed. After steps that could block SSH access, a second connection is opened while the first connection is still
open. If the second connection fails, the steps that could block SSH access are undone over the first connection. Until
the second connection succeeds, a shell on the host undoes the steps if the first connection ends.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import groupby
from time import monotonic

from nccl_doctor.act.record import Journal, RanStep, entry
from nccl_doctor.act.root import (
    CONNECT_S,
    LOGIN,
    RootAccess,
    RootRefusedError,
    node_at,
    unshared,
    wait_until_ready,
    without,
)
from nccl_doctor.act.shell import ANSWER_S, ENDED_BY_TIMEOUT, LONGEST, RemoteShell, shell_program
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.acts import Machine, Step, StepOutcome, StepResult, Undo
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.operation import QUICK_S, Operation, StateLines, same
from nccl_doctor.snapshot.access import SshAuthFailed
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.shell import clean, nested
from nccl_doctor.transport.base import AccessError, Channel, FloodError, Transport
from nccl_doctor.transport.process import ProcessChannel

_AT_ONCE = 64  # hosts changed in parallel
_LOOK_S = 0.2
_LOST = (OSError, EOFError, FloodError)


@dataclass
class Execution:
    """The execution of steps on hosts, with the state that the steps of all hosts share.

    Attributes:
        nodes: nodes by host name.
        transport: transport that opens channels to the hosts.
        roots: way to become root on each host that has a step which needs root.
        by_us: function that runs a step that needs no shell.
        journal: record of the run; None for an undo, because the record of the undone steps is updated instead.
        password: the password for sudo on hosts whose ``RootAccess.way`` is "password".
        on_host: function that is called with a host's name when the steps of the host have ended.
        stop: event that is set if no further step may begin.
    """

    nodes: Mapping[str, Node]
    transport: Transport
    roots: Mapping[str | None, RootAccess]
    by_us: Callable[[Step], StepResult]
    journal: Journal | None = None
    password: bytes | None = field(default=None, repr=False)
    on_host: Callable[[str], None] = lambda _host: None
    stop: threading.Event = field(default_factory=threading.Event)
    _open: set[Channel] = field(default_factory=set)

    def run(self, steps: Sequence[Step]) -> list[StepResult]:
        """Run the steps.

        After Ctrl-C, no host begins another command; after a second Ctrl-C, the running commands end immediately.
        """
        per_host: dict[str | None, list[Step]] = {}
        for step in steps:
            per_host.setdefault(step.host, []).append(step)
        if refusal := self._wrong_password(steps):
            return [StepResult(number=step.number, host=step.host, outcome="not-run", reason=refusal) for step in steps]
        results: list[StepResult] = []

        def serve(host: str | None) -> None:
            results.extend(self._on_host(host, per_host[host]))
            self.on_host(host or "this machine")

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            waiting = {pool.submit(serve, host) for host in per_host}
            every = set(waiting)
            while waiting:
                try:
                    waiting = wait(waiting, timeout=_LOOK_S).not_done
                except KeyboardInterrupt:
                    if self.stop.is_set():
                        self.abandon()
                    self.stop.set()
            for future in every:
                future.result()  # raises an error of ours
        return sorted(results, key=lambda result: result.number)

    def abandon(self) -> None:
        """Close all connections, which ends the running commands."""
        for channel in tuple(self._open):
            channel.close()

    def _wrong_password(self, steps: Sequence[Step]) -> str:
        """Return why a host refuses the password.

        The result is "" if no refusal was seen. The password is tried on only one host, so that a wrong password fails
        only once.
        """
        first = next((step for step in steps if step.root and self._way(step).way == "password"), None)
        if first is None or self.password is None:
            return ""
        try:
            with self._shell(first):
                return ""
        except RootRefusedError as error:
            return f"{error} on {first.host}"
        except (AccessError, *_LOST):
            return ""  # that host's own steps tell

    def _way(self, step: Step) -> RootAccess:
        if not step.root:
            return LOGIN
        return self.roots.get(step.host, RootAccess("none", reason="neither the login nor sudo gives it"))

    def _on_host(self, host: str | None, steps: Sequence[Step]) -> list[StepResult]:
        """Run a host's steps until a step fails; consecutive steps of the same user share a shell."""
        results: list[StepResult] = []
        reason = ""
        for _, alike in groupby(steps, key=lambda step: (step.outside, step.root, step.needs_shell)):
            part = list(alike)
            if reason or self.stop.is_set():
                break
            try:
                results += self._part(part)
                if any(result.outcome != "done" and not result.over for result in results):
                    reason = "a step before it did not succeed"
            except (AccessError, RootRefusedError) as error:
                reason = clean(error.failure.detail if isinstance(error, AccessError) else f"it needs root: {error}")
            except _LOST as error:
                reason = _why_lost(error)
        numbers = {result.number for result in results}
        left = (step.number for step in steps if step.number not in numbers)
        why = reason or "interrupted before it"
        return [*results, *(StepResult(number=each, host=host, outcome="not-run", reason=why) for each in left)]

    def _part(self, steps: Sequence[Step]) -> list[StepResult]:
        results: list[StepResult] = []
        if not steps[0].needs_shell:
            for step in steps:
                results += [] if self.stop.is_set() else [self.by_us(step)]
            return results
        with self._shell(steps[0]) as opened:
            begun: list[RanStep] = []
            for step in steps:
                if self.stop.is_set():
                    break
                results.append(_Taking(opened, step, self._address(step), self.journal, begun).result())
                if results[-1].outcome != "done" and not results[-1].over:
                    break
            return self._kept_open(steps, results, begun, opened)

    def _address(self, step: Step) -> str:
        return "" if step.host is None else self.nodes[step.host].address

    @contextmanager
    def _shell(self, step: Step) -> Iterator[_Opened]:
        access = self._way(step)
        password = self.password if access.way == "password" else None
        if access.way == "none" or (access.way == "password" and password is None):
            raise RootRefusedError(access.reason or "sudo asks for a password there (--ask-sudo)")
        nonce = f"ncdoctor-{secrets.token_hex(8)}"
        command = f"exec {access.prefix} /bin/sh -c {nested(shell_program(nonce, root=step.root))}"
        channel = self._channel(step, command)
        self._open.add(channel)
        try:
            machine = wait_until_ready(channel, nonce, password, root=step.root)
            yield _Opened(RemoteShell(channel, nonce, partial(without, password)), machine)
        finally:
            self._open.discard(channel)
            channel.close()

    def _channel(self, step: Step, command: str, *, fresh: bool = False) -> Channel:
        if step.host is None:
            return ProcessChannel(["/bin/sh", "-c", command])
        node = node_at(self.nodes[step.host], outside=step.outside)
        return self.transport.open(unshared(node) if fresh else node, command, monotonic() + CONNECT_S)

    def _kept_open(
        self, steps: Sequence[Step], results: list[StepResult], begun: Sequence[RanStep], opened: _Opened
    ) -> list[StepResult]:
        """Return the results; undo steps after which no second connection can be opened, and mark them as failed."""
        risky = {step.number for step in steps if step.cuts_connection}
        changed = [item for item in results if item.number in risky and item.changed_something]
        if not changed:
            return results
        if self._second_connection(steps[0]):
            try:
                opened.shell.keep()
            except _LOST as error:
                lost = f"the host takes it back, since it was not kept; that was not seen: {_why_lost(error)}"
                return [_ended(item, "unknown", lost) if item in changed else item for item in results]
            return results
        undo = {item.number: item.undo for item in begun}
        undo |= {step.number: step.undoes.redo for step in steps if step.undoes is not None}
        back = {item.number: _reverted(undo.get(item.number), opened.shell) for item in changed[::-1]}
        if set(back.values()) == {TAKEN_BACK}:
            with suppress(*_LOST):
                opened.shell.keep()
        for ran in begun:
            if self.journal is not None and back.get(ran.number) == TAKEN_BACK:
                with suppress(DoctorError):  # an undo looks, and finds that nothing is left of it
                    self.journal.write(ran.model_copy(update={"undone": True}))
        return [
            _ended(item, "failed", f"{LOCKED_OUT} {back[item.number]}") if item in changed else item for item in results
        ]

    def _second_connection(self, step: Step) -> bool:
        """Return whether another connection to the host can be opened now; a refused login counts as a connection."""
        mark = secrets.token_hex(8)
        try:
            channel = self._channel(step, f"echo {mark}", fresh=True)
        except AccessError as error:
            return isinstance(error.failure, SshAuthFailed)
        except _LOST:
            return False
        try:
            until = monotonic() + ANSWER_S
            while (line := channel.read_line(until)) is not None:
                if mark in line.decode(errors="replace"):
                    return True
        except _LOST:
            return False
        finally:
            channel.close()
        return False


LOCKED_OUT = "no second connection could be opened after it, so"
TAKEN_BACK = "it was taken back"


@dataclass(frozen=True)
class _Opened:
    shell: RemoteShell
    machine: Machine


class _StoppedError(Exception):
    """Exception that ends a step early; ``over`` is True if nothing remains to be done."""

    def __init__(self, outcome: StepOutcome, reason: str = "", *, over: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.over = outcome, over


@dataclass
class _Taking:
    opened: _Opened
    step: Step
    address: str
    journal: Journal | None
    begun: list[RanStep]

    def result(self) -> StepResult:
        """Read and record the state, run the step's command, and read and record the new state."""
        step, at = self.step, datetime.now(timezone.utc).isoformat(timespec="seconds")
        known: dict[str, object] = {"number": step.number, "host": step.host, "at": at}
        try:
            self._refuse_other_machine()
            fields = self._undone(step.undoes) if step.undoes is not None else self._changed(step.operation, at)
            return StepResult.model_validate({**known, "outcome": "done", **fields})
        except _StoppedError as stopped:
            there = {"was_there": stopped.outcome == "done" and step.undoes is None, "over": stopped.over}
            return StepResult.model_validate({**known, **there, "outcome": stopped.outcome, "reason": str(stopped)})
        except FloodError as error:
            return StepResult.model_validate({**known, "outcome": "failed", "reason": f"it printed {error}"})
        except (OSError, EOFError) as error:
            reason = f"its end was not seen: {_why_lost(error)}"
            return StepResult.model_validate({**known, "outcome": "unknown", "reason": reason})

    def _refuse_other_machine(self) -> None:
        now, step = self.opened.machine, self.step
        if step.boot_id is not None and Machine(boot_id=step.boot_id).was_restarted(now):
            raise _StoppedError("changed", "the host was restarted since it was checked")
        if step.undoes is None:
            return
        if step.undoes.machine.differs(now):
            raise _StoppedError("changed", "another machine has this host's name now")
        if step.undoes.survives_reboot is False and now.was_restarted(step.undoes.machine):
            raise _StoppedError("changed", "it was lost when the host was restarted", over=True)

    def _changed(self, operation: Operation | None, at: str) -> dict[str, object]:
        """Run and record an operation; return fields for the StepResult."""
        look = None if operation is None else operation.look
        before = () if look is None else self._state(str(look))
        if operation is not None and look is not None and operation.holds(before):
            raise _StoppedError("done")
        if operation is not None and operation.is_outdated(before):
            raise _StoppedError("changed", "somebody else has changed it since it was checked")
        undo = None if operation is None or look is None else operation.undo(before)
        if self.opened.shell.hides(before):
            raise _StoppedError("failed", "its present value contains the password, so nothing was changed")
        if undo is None and self.step.undo is not None:
            raise _StoppedError("failed", "its present state could not be read, so nothing was changed")
        mine = entry(
            self.step,
            address=self.address,
            machine=self.opened.machine,
            look=None if look is None else str(look),
            before=before,
            expected=None if operation is None else operation.expected,
            undo=None if undo is None else str(undo),
            survives_reboot=None if operation is None else operation.survives_reboot,
            at=at,
        )
        try:
            self._write(mine)
        except DoctorError as error:
            raise _StoppedError("failed", f"it could not be recorded, so nothing was changed: {error}") from None
        self.begun.append(mine)
        if self.step.cuts_connection and undo is not None:
            self.opened.shell.revert_unless_kept(str(undo))
        ended = self.opened.shell.run(self.step.command, operation.deadline_s if operation else QUICK_S)
        after = None if look is None else self._state_or_none(str(look))
        fields: dict[str, object] = {"exit_code": ended.status, "output": "\n".join(ended.lines[-12:])}
        if ended.status:
            fields |= {"outcome": "failed", "reason": _why_ended(ended.status, operation)}
        elif look is not None and (after is None or (operation is not None and not operation.holds(after))):
            gone = "the command ended well, but its change is not there"
            why = "the change could not be looked at afterwards" if after is None else gone
            fields |= {"outcome": "unknown" if after is None else "failed", "reason": why}
        outcome = {"outcome": fields.get("outcome", "done"), "exit_code": ended.status, "output": fields["output"]}
        recorded = None if after is not None and self.opened.shell.hides(after) else after
        self.begun[-1] = mine.model_copy(update={**outcome, "after": recorded})
        try:
            self._write(self.begun[-1])
        except DoctorError as error:  # what was written before the command suffices to undo it
            fields |= {"outcome": "failed", "reason": f"its result could not be recorded: {error}"}
        return fields

    def _undone(self, undoes: Undo) -> dict[str, object]:
        """Undo an earlier step unless the state has been changed again; return fields for the StepResult."""
        if undoes.look is None:
            raise _StoppedError("not-run", "there is nothing to look at")
        now = self._state(undoes.look)
        if same(now, undoes.before):
            raise _StoppedError("changed", "it is not there any more", over=True)
        left = undoes.after if undoes.after is not None else undoes.expected
        if left is not None and not same(now, left):
            raise _StoppedError("changed", "somebody else has changed it since")
        if self.step.cuts_connection and undoes.redo:
            self.opened.shell.revert_unless_kept(undoes.redo)
        ended = self.opened.shell.run(self.step.command, QUICK_S)
        fields: dict[str, object] = {"exit_code": ended.status, "output": "\n".join(ended.lines[-12:])}
        if ended.status or not same(self._state(undoes.look), undoes.before):
            reason = "" if ended.status else "it is still not as it was before"
            return fields | {"outcome": "failed", "reason": reason}
        return fields | {"over": True}

    def _state(self, look: str) -> StateLines:
        """Return the output of the command ``look``; raise _StoppedError if the command fails."""
        looked = self.opened.shell.run(look, ANSWER_S, whole=True)
        if looked.status:
            shown = looked.lines and not self.opened.shell.hides(looked.lines)
            message = f": {looked.lines[-1]}" if shown else ""
            raise _StoppedError("failed", f"it could not be looked at, so nothing was changed{message}"[:LONGEST])
        return looked.lines

    def _state_or_none(self, look: str) -> StateLines | None:
        try:
            return self._state(look)
        except _StoppedError:
            return None

    def _write(self, mine: RanStep) -> None:
        if self.journal is not None:
            self.journal.write(mine)


def _ended(result: StepResult, outcome: StepOutcome, reason: str) -> StepResult:
    return result.model_copy(update={"outcome": outcome, "over": False, "reason": reason})


def _reverted(undo: str | None, shell: RemoteShell) -> str:
    """Undo a step over the connection that is still open; return a clause that describes the outcome."""
    if undo is None:
        return "the host may not be reachable any more: it can't be taken back"
    try:
        ended = shell.run(undo, QUICK_S)
    except _LOST as error:
        return f"the host itself takes it back when the connection ends; that was not seen ({_why_lost(error)})"
    if ended.status:
        return f"it was to be taken back, which failed: {' '.join(ended.lines[-1:])}"
    return TAKEN_BACK


def _why_lost(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else f"the connection ended ({clean(str(error))})"


def _why_ended(status: int, operation: Operation | None) -> str:
    if status not in ENDED_BY_TIMEOUT:
        return ""
    seconds = int(operation.deadline_s if operation else QUICK_S)
    return f"it did not end in {plural(seconds, 'second')}, and was ended"
