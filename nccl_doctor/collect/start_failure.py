"""Why the probe did not come up: no such interpreter, one that can't run it, or a login that starts none.

The words are those of dash, bash, zsh, fish, tcsh and busybox's ash, of ld.so and of Python itself, in English.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_doctor.snapshot import ProbeFacts, ProbeFailed, PythonFacts, PythonMissing, PythonProblem
from nccl_doctor.text.secrets import part

_NOT_FOUND = 127
"""A shell's exit status for a command that it does not find (POSIX, 2.8.2)."""

_KILLED = (None, 128 + 9, 255)
"""As paramiko, a shell and ssh tell of a command that a signal ended: without a status, by its number, by ssh's own."""

DAMAGED = "the probe came damaged"
"""What the host says of a program whose bytes are not those that were sent."""

SILENT = "nothing came from nccl-doctor for a while"
"""What the loader says as it ends."""

_WORDS = 120


@dataclass(frozen=True)
class Start:
    """What was seen of a start that came to nothing.

    Attributes:
        python: the interpreter that was asked for.
        place: the container that it was asked for in, "the docker container train"; empty for the host itself.
        error: what went wrong on the channel, or the probe's own refusal.
        came: the login shell came to our line, so that its start-up files did not end it.
        ready: the interpreter said that it runs, so that neither the shell nor the path is at fault.
        late: it was a deadline, so that the machine may be slow.
        lied: it answered what the probe never says.
        status: the command's exit status; None where nobody knows.
        stderr: its last lines.
        chatter: the last lines on stdout that were not the probe's.
    """

    python: str
    place: str
    error: str
    came: bool
    ready: bool
    late: bool
    lied: bool
    status: int | None
    stderr: Sequence[str]
    chatter: Sequence[str]


_SHELL: tuple[tuple[PythonProblem, str, str], ...] = (
    ("directory", r"(?i)is a directory", "{python} is a directory, not an interpreter"),
    ("architecture", r"(?i)exec format error|cannot execute binary", "{python} is made for another kind of processor"),
    ("permission", r"(?i)permission denied", "the user may not run {python}: permission denied"),
)
_OWN = "|".join(sys.stdlib_module_names)
_PYTHON: tuple[tuple[PythonProblem, str, str], ...] = (
    ("too-old", r"Python 3\.8 or later is needed, this is (\S+)", "{python} is Python {0}, and 3.8 or later is needed"),
    ("incomplete", rf"No module named '?({_OWN})\b", "{python} is a Python built without {0}"),
    ("memory", r"ulimit -v is (\d+) KiB", "{python} gets too little memory: ulimit -v is {0} KiB"),
    ("memory", r"failed to map segment|(?i:cannot allocate memory)", "{python} does not start: it gets no memory"),
    ("library", r"loading shared libraries: ([^:]+):", "{python} does not start: the library {0} can't be loaded"),
    ("broken", r"Fatal Python error: (?:\w+: )?(.+)", "{python} does not start: {0}"),
    ("too-old", r"(?i)unknown option:? -I", "{python} is Python 2, and 3.8 or later is needed"),
    ("too-old", r"SyntaxError: ", "{python} is Python 2, and 3.8 or later is needed"),
)  # fmt: skip


def start_failure(start: Start) -> PythonMissing | ProbeFailed:
    """The failure that what was seen shows."""
    evidence, inside = (*start.stderr, *start.chatter), f"in {start.place} " if start.place else ""
    found = _problem(start) if start.came and not (start.late or start.lied) else None
    if found is not None:
        problem, detail = found
        facts = PythonFacts(python=start.python, problem=problem)
        return PythonMissing(detail=inside + detail, evidence=evidence, facts=facts)
    stage = "start" if start.ready or start.lied or _cut_off(start) else "login"
    return ProbeFailed(
        detail=inside + _detail(start),
        evidence=evidence,
        facts=ProbeFacts(python=start.python, stage=stage, late=start.late),
    )


def _cut_off(start: Start) -> bool:
    """The shell had come to our line, and what ran then was killed or lost with its session."""
    return start.came and not start.late and start.status in _KILLED


def _problem(start: Start) -> tuple[PythonProblem, str] | None:
    """What is wrong with the interpreter, and the phrase; None where it is not the interpreter."""
    by_itself = _match(_PYTHON, (start.error, *start.stderr), start.python)
    if by_itself is not None or start.ready or start.status in (0, None):
        return by_itself
    if start.status == _NOT_FOUND or any(re.search("(?i)not found|no such file", line) for line in start.stderr):
        return "missing", f'there is no interpreter "{start.python}"'
    return _match(_SHELL, start.stderr, start.python)


def _match(
    rules: Iterable[tuple[PythonProblem, str, str]], lines: Sequence[str], python: str
) -> tuple[PythonProblem, str] | None:
    for problem, pattern, phrase in rules:
        for line in lines:
            if found := re.search(pattern, line):
                return problem, phrase.format(*found.groups(), python=python)
    return None


def _detail(start: Start) -> str:
    if any(DAMAGED in line for line in start.stderr):
        return f"{DAMAGED}: the way to {start.python} there loses bytes, as kubectl exec and old relays did"
    if start.ready and any(SILENT in line for line in start.stderr):
        return (
            f"{start.python} runs there and its short words come through, but the program that is sent to it does not: "
            "large packets seem to vanish on the way"
        )
    if start.ready or start.lied or _cut_off(start):
        return f"{start.python} did not start the probe: {start.error}"
    if start.late:
        why = "that interpreter hangs" if start.came else "the login waits or runs something else"
        return f"{start.python} did not start in time: {why}"
    words = next(
        (part(line.strip(), 0, _WORDS) for line in reversed((*start.stderr, *start.chatter)) if line.strip()), ""
    )
    said = f', and said "{words}"' if words else ""
    return f"its login ended without starting {start.python}{said}"
