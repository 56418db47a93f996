"""Runs the system's own programs as root.

Otherwise than as root they run under ``sudo -n``, which never asks for a password. They are looked for only in the
system's own folders, since root is handed their paths.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress

from nccl_doctor.probe import tools
from nccl_doctor.probe.unavailable import Unavailable

MAX_BYTES = 8 << 20
"""Of one command's output. Tens of thousands of rules (kube-proxy) fit; more would stall the connection."""
CAP_NET_ADMIN = 12
"""Its bit (linux/capability.h)."""


def _may_administer() -> bool:
    """Whether our root has CAP_NET_ADMIN (capabilities(7)); true where the kernel does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            told = [line.split()[1] for line in status if line.startswith("CapEff:")]
    except OSError:
        return True
    return not told or bool(int(told[0], 16) >> CAP_NET_ADMIN & 1)


class Root:
    """Runs programs as root, all of them before one deadline.

    Args:
        deadline: on the clock of ``time.monotonic``.
        sudo: whether ``sudo -n`` may be tried.

    Raises:
        Unavailable: we are not root and can't become so.
    """

    def __init__(self, deadline: float, sudo: bool) -> None:
        self._deadline = deadline
        self._sudo: list[str] = []
        self._wraps = True
        if os.geteuid() == 0:
            if not _may_administer():
                raise Unavailable("root of this container has no CAP_NET_ADMIN")
            return
        if not sudo:
            raise Unavailable("only root may read the rules")
        found = find("sudo")
        if found is None:
            raise Unavailable("only root may read the rules, and there is no sudo")
        self._sudo = [found, "-n"]
        # Whether anything may be run without a password; what, each program's own attempt tells: a right to nft alone
        # is enough for its rules.
        status, _output, complaint = self._run([*self._sudo, "-l"], "sudo")
        if status:
            wants = "sudo needs a password" if "password" in complaint else f"sudo refuses: {complaint.strip()}"
            raise Unavailable(wants)
        # sudo -l also lists what it would ask a password for.
        timeout, true = find("timeout"), find("true")
        bounded = [timeout, "5", true] if timeout and true else []
        self._wraps = bool(bounded) and all(
            self._run([*self._sudo, *words], "sudo")[0] == 0 for words in (["-l", *bounded], bounded)
        )

    def attempt(self, command: list[str]) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a program.

        Raises:
            Unavailable: it is not there, does not end in time, or prints too much.
        """
        program = find(command[0])
        if program is None:
            raise Unavailable("%s is not installed" % command[0])
        # timeout(1) runs under sudo with the program: we may not end what belongs to root ourselves. Where sudo allows
        # the program but no timeout, a program that hangs is left to end when its pipe is closed.
        seconds = "%.2f" % max(self._deadline - time.monotonic(), 0.01)
        timeout = find("timeout") if self._wraps else None
        bound = [timeout, "-k", "1", seconds] if timeout else []
        return self._run([*self._sudo, *bound, program, *command[1:]], command[0])

    def _run(self, command: list[str], name: str) -> tuple[int, str, str]:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("no time was left to ask " + name)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={**os.environ, "PATH": os.pathsep.join(tools.SYSTEM), "LC_ALL": "C"},
            )
        except OSError as error:
            raise Unavailable("%s could not be run: %s" % (name, error)) from error
        try:
            printed, complaint = process.communicate(timeout=left + (2 if self._wraps else 0))
        except subprocess.TimeoutExpired as error:
            _abandon(process)
            raise Unavailable("%s did not end in %.1f s" % (name, left)) from error
        if process.returncode in (124, 137):
            raise Unavailable("%s did not end in %.1f s" % (name, left))
        if len(printed) > MAX_BYTES:
            raise Unavailable("%s prints more than %d MiB of rules" % (name, MAX_BYTES >> 20))
        return process.returncode, _text(printed), _text(complaint)

    def output(self, *command: str) -> str:
        """Stdout of a program that must succeed.

        Raises:
            Unavailable: it fails, with its own words.
        """
        status, printed, complaint = self.attempt(list(command))
        if status:
            words = " ".join((complaint or printed).split()) or "exit status %d" % status
            raise Unavailable("%s: %s" % (" ".join(command), words[:200]))
        return printed


def find(program: str) -> str | None:
    """Where a program of probe/tools.py is, in the system's own folders, if only root can change it."""
    return tools.find(program, tools.SYSTEM, for_root=True)


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, or, where it is root's under sudo, lets it run into its closed pipes."""
    with suppress(PermissionError):
        process.kill()
        process.wait(2)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "backslashreplace")
