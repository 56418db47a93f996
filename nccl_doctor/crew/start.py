"""Builds the command that starts a probe on a host, and determines why a probe did not start.

The command line contains a loader that reads exactly the bytes of the probe from stdin, because ``python -`` would read
stdin to its end. The loader exits if it receives no data for several seconds.

Error messages are recognized in the English wording of dash, bash, zsh, fish, tcsh, BusyBox ash, ld.so and Python.
"""

from __future__ import annotations

import marshal
import math
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path, PurePosixPath
from types import CodeType

from nccl_doctor import probe
from nccl_doctor.probe.bootstrap import file_name
from nccl_doctor.snapshot.access import ProbeFacts, ProbeFailed, PythonFacts, PythonMissing, PythonProblem
from nccl_doctor.text.machine import thread_safe_cache
from nccl_doctor.text.secrets import part

_NOT_FOUND = 127
"""Exit status of a shell that did not find the command (POSIX, section 2.8.2)."""

_KILLED = (None, 128 + 9, 255)
"""Exit statuses that paramiko, shells and ssh report for a command that was ended by a signal."""

DAMAGED = "the probe came damaged"
"""The loader's message if the received program differs from the program that was sent."""

SILENT = "nothing came from nccl-doctor for a while"
"""The loader's last message if no more data arrives."""

_WORDS = 120


@dataclass(frozen=True)
class ProbeStart:
    """The evidence about a failed start of a probe.

    Attributes:
        python: the requested interpreter.
        place: the container for the probe, such as ``the Docker container "train"``, or an empty string for the host
            itself.
        error: the channel's error, or the reason why the probe refused to run.
        login: whether a login shell starts the interpreter, which is not the case on this machine or with Slurm,
            Kubernetes or ``check --join``.
        shell_ready: whether the login shell ran the command that starts the probe.
        ready: whether the loader reported that the interpreter is running.
        late: whether a deadline passed.
        lied: whether the host sent an answer that the probe never sends.
        status: the command's exit status, or None if unknown.
        stderr: the last lines on stderr.
        chatter: the last lines on stdout that did not come from the probe.
    """

    python: str
    place: str
    error: str
    login: bool
    shell_ready: bool
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


def start_failure(start: ProbeStart) -> PythonMissing | ProbeFailed:
    evidence, inside = (*start.stderr, *start.chatter), f"in {start.place} " if start.place else ""
    result = _problem(start) if start.shell_ready and not (start.late or start.lied) else None
    if result is not None:
        problem, detail = result
        facts = PythonFacts(python=start.python, problem=problem)
        return PythonMissing(detail=inside + detail, evidence=evidence, facts=facts)
    stage = "start" if start.ready or start.lied or not start.login or _cut_off(start) else "login"
    return ProbeFailed(
        detail=inside + _detail(start),
        evidence=evidence,
        facts=ProbeFacts(
            python=start.python, stage=stage, late=start.late, ran=start.ready or start.lied or stage == "login"
        ),
    )


def _cut_off(start: ProbeStart) -> bool:
    """Return whether the shell ran the command, and then a signal ended the command or the session was lost."""
    return start.shell_ready and not start.late and start.status in _KILLED


def _problem(start: ProbeStart) -> tuple[PythonProblem, str] | None:
    """Return the interpreter's problem and a phrase that describes it, or None if the interpreter is not at fault."""
    by_itself = _match(_PYTHON, (start.error, *start.stderr), start.python)
    if by_itself is not None or start.ready or start.status in (0, None):
        return by_itself
    # other missing files belong to another program, or to a container runtime's message
    name = PurePosixPath(start.python).name
    lacking = [line for line in start.stderr if re.search("(?i)not found|no such file", line)]
    if any(name in line for line in lacking) or (start.status == _NOT_FOUND and not lacking):
        return "missing", f'the interpreter "{start.python}" does not exist'
    return _match(_SHELL, start.stderr, start.python)


def _match(
    rules: Iterable[tuple[PythonProblem, str, str]], lines: Sequence[str], python: str
) -> tuple[PythonProblem, str] | None:
    for problem, pattern, phrase in rules:
        for line in lines:
            if match := re.search(pattern, line):
                return problem, phrase.format(*match.groups(), python=python)
    return None


def _detail(start: ProbeStart) -> str:
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
        slow = "that interpreter hangs, or needs longer than --connect-timeout gives it"
        why = slow if start.shell_ready or not start.login else "the login waits or runs something else"
        return f"{start.python} did not start in time: {why}"
    words = next(
        (part(line.strip(), 0, _WORDS) for line in reversed((*start.stderr, *start.chatter)) if line.strip()), ""
    )
    quote = f', and said "{words}"' if words else ""
    if not start.login:
        status = "" if start.status is None else f" with exit status {start.status}"
        return f"{start.python} ended{status} and did not start the probe{quote}"
    return f"its login ended without starting {start.python}{quote}"


LOADER = (
    "n='<nccl-doctor>';from _frozen_importlib_external import PathFinder as f;"
    "f.find_spec('signal')or __import__('site').main();"
    "import os,signal,sys,zlib;signal.signal(14,lambda *_:sys.exit('{silent}'));signal.alarm({silence});"
    "print('{mark}'[::-1]+'{{}}',flush=True);b=bytearray();e='{damaged}';"
    "[b.extend(os.read(0,{size}-len(b))or sys.exit(e))or signal.alarm({silence})"
    "for _ in iter(lambda:len(b)<{size},False)];zlib.crc32(b)=={crc} or sys.exit(e);"
    "d=zlib.decompressobj();exec(compile(d.decompress(b),n,'exec'))"
)
"""Python source of the loader, which prints the nonce and an empty JSON object when it is ready.

The probe is sent only after the loader's report, because another program in place of the loader could execute the probe
as commands. The nonce is reversed in the command line, so that an echo of the command line is not mistaken for the
loader's report. The command line contains the length and checksum of the probe, because some channels lose bytes
(kubernetes#112834). Probes recognize the loaders of other runs by the name at the beginning of the loader. The loader
calls ``site.main()`` if necessary, because a virtualenv from before 2020 finds the standard library only through its
site module.
"""


NEVER_IMPORTED = {"nccl_doctor.probe.bootstrap", "nccl_doctor.probe.smoke.worker"}
"""Modules of the probe that are run from source and never imported."""


@thread_safe_cache
def bundle() -> bytes:
    """Return the compressed text of bootstrap.py, followed by all modules of the probe, which bootstrap.py loads."""
    root = Path(probe.__file__).parent
    # level 3 takes half the time of the default, during which no host is asked, and the result is a sixteenth larger
    nothing = zlib.compress(b"", 3)
    modules = {"nccl_doctor.__init__": (nothing, zlib.compress(marshal.dumps(compile("", "<probe>", "exec")), 3))}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("nccl_doctor.probe", *path.relative_to(root).with_suffix("").parts))
        packed = nothing
        if name not in NEVER_IMPORTED and (code := SourceFileLoader(name, str(path)).get_code(name)) is not None:
            packed = zlib.compress(marshal.dumps(_renamed(code, file_name(name.removesuffix(".__init__")))), 3)
        modules[name] = zlib.compress(path.read_bytes(), 3), packed
    program = f"{(root / 'bootstrap.py').read_text(encoding='utf-8')}\n\nstart(d.unused_data)\n"
    return zlib.compress(program.encode(), 3) + MAGIC_NUMBER + marshal.dumps(modules, 2)


_digest = lru_cache(1)(zlib.crc32)  # of the bundle, for the command line on each host


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return a copy of a code object, including nested code objects, with ``name`` as the file name."""
    constants = (_renamed(value, name) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(constants))


def login_mark(nonce: str) -> str:
    """Return the line that the login shell prints after it has run its start-up files."""
    return f"ncdoctor-{nonce[::-1][:16]}"


def command(python: str, nonce: str, silence_s: float) -> str:
    """Return the shell command that starts the probe with the interpreter ``python``.

    ``nonce`` consists of letters and digits, and marks the probe's messages. The loader exits if it receives no data
    for ``silence_s`` seconds.

    With ``exec``, the interpreter replaces the shell, so that no shell process remains. A double-quoted string without
    $, ` or ! means the same in sh, csh and fish. The ``-I`` option prevents files in a home directory and PYTHON*
    variables from shadowing a module. The ``-S`` option prevents installed packages from running code at start-up,
    which can take hundreds of milliseconds.
    """
    loader = LOADER.format(
        size=len(bundle()),
        crc=_digest(bundle()),
        damaged=DAMAGED,
        silent=SILENT,
        silence=math.ceil(silence_s),
        mark=nonce[::-1],
    )
    interpreter = "~/" + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
    return f'echo {login_mark(nonce)}; exec {interpreter} -I -S -c "{loader}"'
