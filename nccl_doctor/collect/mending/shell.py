"""A shell on a host that runs prepared commands by number, and nothing else.

If the connection ends, the shell ends the running command and itself; ``timeout`` limits each command.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from nccl_doctor.model.mending import Step, StepOutcome, StepResult
from nccl_doctor.probe.tools import SYSTEM
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.shell import Line, argument, clean, nested, program, script
from nccl_doctor.transport.base import Allowance, Channel, FloodError

ANSWER_S = 20.0
MOST_OUTPUT = 1 << 20  # bytes of one command's output
LONGEST = 300  # characters of a line of output that are kept
_LINES = 12
_KILL_S = 5  # between timeout's TERM and KILL
_ENDED_BY_TIMEOUT = (124, 128 + 9)  # timeout(1), "Exit status"

_SHELL = """\
LC_ALL=C; PATH={path}; export LC_ALL PATH
while read -r word; do [ "$word" = {nonce} ] && break; done
echo; echo {nonce} ready "$(id -u)" "$(cat /proc/sys/kernel/random/boot_id)"
exec 4<&0 </dev/null
command -v timeout >/dev/null && bounded=yes || bounded=
run() {{
if [ "$bounded" ]; then exec timeout -k {kill} "$1" /bin/sh -c "$2"; else exec /bin/sh -c "$2"; fi
}}
step() {{
case $1 in
{cases}
esac
}}
while read -r number <&4; do
case $number in ''|*[!0-9]*) continue ;; esac
step "$number" 4<&- 2>&1 &
command=$!
(while read -r word <&4; do [ "$word" = ended ] && exit; done; kill "$command") &
guard=$!
wait "$command"; status=$?
echo; echo {nonce} end "$number" "$status"
wait "$guard"
done
"""
"""A program for /bin/sh that reports that it is ready and runs a command for each number that it reads."""


def shell_program(nonce: str, steps: Sequence[Step]) -> Line:
    """Return the program of the shell that runs the commands of steps, each with its deadline."""
    cases = [
        script("{n}) run {seconds} {command} ;;\n", n=n, seconds=int(seconds), command=nested(_own(command)))
        for n, (seconds, command) in enumerate(_commands(steps), 1)
    ]
    system = argument(":".join(SYSTEM))
    # root runs no program that another user may have put into a directory of the login's PATH
    path = system if steps[0].root else script("$PATH:{system}", system=system)
    return script(_SHELL, path=path, nonce=argument(nonce), kill=_KILL_S, cases=cases)


def _commands(steps: Iterable[Step]) -> Iterator[tuple[float, str]]:
    """Yield each command with its deadline, in the order in which :meth:`RemoteShell.take` runs them."""
    for step in steps:
        for look in filter(None, (step.in_place, step.reads)):
            yield ANSWER_S, look
        yield step.deadline_s, step.command


def _own(command: str) -> str:
    """Return the command with the path of this program for nccl-doctor, whatever PATH holds."""
    name, space, rest = command.partition(" ")
    return f"{program(sys.executable)} -m nccl_doctor{space}{rest}" if name == "nccl-doctor" else command


@dataclass(frozen=True)
class _Ended:
    """The end of one command: its status, and the last lines that it printed."""

    status: int
    lines: tuple[str, ...]


class _StoppedError(Exception):
    """A step ends before its command; ``outcome`` and the message are the reason."""

    def __init__(self, outcome: StepOutcome, reason: str, ended: _Ended) -> None:
        super().__init__(reason)
        self.outcome, self.ended = outcome, ended


class RemoteShell:
    """A shell on a host that is ready to run steps."""

    def __init__(self, channel: Channel, nonce: str) -> None:
        self._channel, self._nonce, self._number = channel, nonce, 0

    def take(self, step: Step) -> StepResult:
        """Run a step: the queries that come before, and its command."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        known: dict[str, object] = {"number": step.number, "host": step.host, "at": at}
        outcome: StepOutcome
        ended, reason = None, ""
        try:
            known |= self._looked(step)
            ended = self._run(step.deadline_s)
            if step.already is not None:
                known["before"] = tuple(line for line in ended.lines if step.already in line)
            outcome = "failed" if ended.status else "done"
            if ended.status in _ENDED_BY_TIMEOUT:
                reason = f"it did not end in {plural(int(step.deadline_s), 'second')}, and was ended"
        except _StoppedError as stopped:
            outcome, reason, ended = stopped.outcome, str(stopped), stopped.ended
        except FloodError as error:
            outcome, reason = "failed", f"it printed {error}"
        except TimeoutError:
            outcome, reason = "unknown", f"no end was seen in {plural(int(step.deadline_s), 'second')}"
        except (EOFError, OSError) as error:
            outcome, reason = "unknown", f"the connection ended while it ran ({clean(str(error))})"
        if ended is not None:
            known |= {"exit_code": ended.status, "output": "\n".join(ended.lines)}
        return StepResult.model_validate(known | {"outcome": outcome, "reason": reason})

    def _looked(self, step: Step) -> dict[str, object]:
        """Return the results of the queries before the step's command."""
        known: dict[str, object] = {}
        if step.in_place is not None:
            looked = self._run(ANSWER_S)
            if step.takes_back is not None and looked.status != 0:
                raise _StoppedError("changed", "it is no longer as it was left", looked)
            known["was_there"] = looked.status == 0
        if step.reads is not None:
            read = self._run(ANSWER_S)
            if read.status != 0:
                raise _StoppedError("failed", "the values before it could not be read, so nothing was changed", read)
            known["before"] = read.lines
        return known

    def _run(self, seconds: float) -> _Ended:
        """Run the next command; TimeoutError, OSError, EOFError or FloodError if its end was not seen."""
        self._number += 1
        until = time.monotonic() + seconds + _KILL_S + ANSWER_S
        self._channel.send(f"{self._number}\n".encode(), until)
        allowance = Allowance(MOST_OUTPUT)
        kept: deque[str] = deque(maxlen=_LINES)
        while (line := self._channel.read_line(until)) is not None:
            allowance.spend(line)
            text = line.decode(errors="replace")
            words = text.split()
            if words[:3] == [self._nonce, "end", str(self._number)] and len(words) == 4 and words[3].isdecimal():
                self._channel.send(b"ended\n", until)
                return _Ended(int(words[3]), tuple(kept))
            if text.strip():
                kept.append(clean(text)[:LONGEST])
        raise EOFError("the shell there ended")
