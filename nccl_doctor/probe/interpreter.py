"""The interpreter that training would run, asked where it takes torch from and what the libnccl found there answers.

The probe itself runs isolated (``-I``) and does not see what PYTHONPATH or a user's own packages provide; training
does. One child tells both, since starting it costs more than the answers. It gets the second question on its stdin,
and ends when nothing comes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import IO, Any

from nccl_doctor.probe import children, libnccl
from nccl_doctor.probe.unavailable import Unavailable

MARGIN_S = 1.0
"""What whoever decides may take beyond the deadline."""
MARK = b"nccl-doctor-torch "
SCRIPT = (
    "import sys, json\n"
    "from importlib.util import find_spec\n"
    "s = find_spec('torch')\n"
    f"print('\\n' + {MARK.decode()!r} + json.dumps([s and s.origin, sys.path, sys.prefix]), flush=True)\n"
    "exec(sys.stdin.read())\n"
)


class Interpreter:
    """One child; made in the probe's main thread, asked from any.

    Args:
        env: the job's own variables.
        deadline: on the clock of ``time.monotonic``, for all answers.
    """

    def __init__(self, env: dict[str, str], deadline: float) -> None:
        self._deadline = deadline
        self._output = b""
        self._library: str | None = None
        self._decided = threading.Event()
        self._failure: str | None = None
        self._heard = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._reading, writing = os.pipe()
        try:
            command = [sys.executable, "-c", SCRIPT]
            self._child = children.start(command, libnccl.variables(env), writing, stdin=subprocess.PIPE)
        except OSError as error:  # no process left (RLIMIT_NPROC): costs what it would have told
            self._output = str(error).encode()
        finally:
            os.close(writing)

    def torch(self) -> tuple[str | None, list[str], str]:
        """Path of torch's __init__.py, None where there is no torch; sys.path and sys.prefix.

        Raises:
            Unavailable: the interpreter fails or does not end.
        """
        try:
            self._await_word()
        finally:
            self._heard.set()
        said, _, self._output = self._output.partition(MARK)[2].partition(b"\n")
        origin, path, prefix = json.loads(said.decode())
        return origin, path, prefix

    def failure(self) -> str | None:
        """What it said as it ended where it can't run at all as training would start it; None else."""
        self._heard.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
        return self._failure

    def decide(self, library: str | None) -> None:
        """Names the libnccl to ask, or None for none; once, and whatever came of :meth:`torch`."""
        self._library = library
        self._decided.set()

    def nccl(self) -> dict[str, Any] | None:
        """The answer of that libnccl, see :func:`libnccl.understand`; None where none was named.

        Waits for :meth:`decide`, and ends the child.
        """
        try:
            self._decided.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
            if self._library is None or self._child is None or self._child.stdin is None:
                return None
            return self._ask(self._child.stdin, self._library)
        finally:
            if self._child is not None:
                self._child.kill()
                self._child.communicate()
            os.close(self._reading)

    def _ask(self, stdin: IO[bytes], library: str) -> dict[str, Any]:
        try:
            with stdin as questions:
                questions.write(libnccl.program(library).encode())
            while self._read():
                continue
        except BrokenPipeError:  # it ended after its first answer: its last words tell
            pass
        except Unavailable as error:
            return libnccl.failed(f"libnccl did not answer: {error}")
        return libnccl.understand(self._output)

    def _await_word(self) -> None:
        while not self._said():
            if not self._read():
                words = " ".join(self._output.decode("utf-8", "replace").split())[-200:]
                if self._child is not None:
                    self._failure = words or "it ended without a word"
                raise Unavailable(f"{sys.executable} did not say where torch is: {words}")

    def _said(self) -> bool:
        return b"\n" in self._output.partition(MARK)[2]

    def _read(self) -> bool:
        """Takes more of what the child says; whether there was more.

        Raises:
            Unavailable: the deadline has come.
        """
        left = max(0.0, self._deadline - time.monotonic())
        if not select.select([self._reading], [], [], left)[0]:
            raise Unavailable(f"{sys.executable} gave no answer in time")
        chunk = os.read(self._reading, 1 << 16)
        self._output += chunk
        return bool(chunk)
