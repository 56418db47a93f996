"""A host of a running lab, as a test holds it: run things on it, read and write its files."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from tests.lab import kernel
from tests.lab.errors import CommandFailed, LabError
from tests.lab.machine import runs
from tests.lab.plan import ALICE, CONTROLLER
from tests.lab.requirements import SYSTEM_PATH
from tests.patience import LONG_S

T = TypeVar("T")
Command = list[str] | str
Stream = int | IO[Any] | None

NETWORK = kernel.CLONE_NEWNET
WHOLE_HOST = NETWORK | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC

controller_path: list[Callable[[], Path]] = [Path(sys.executable).parent.absolute]
"""Folders of programs on the controller besides a system's own."""

IDS = {"root": 0, "alice": ALICE}
"""The users of a host, who are their groups as well."""


def enter(pid: int, flags: int = WHOLE_HOST) -> None:
    """Move the calling thread into another process's namespaces; into that of PIDs, its children."""
    descriptor = os.pidfd_open(pid)
    try:
        kernel.unshare(kernel.CLONE_FS)  # a mount namespace is entered by one who shares no working directory
        kernel.setns(descriptor, flags)
    finally:
        os.close(descriptor)


def inside(pid: int, flags: int, action: Callable[[], T]) -> T:
    """Do something in another process's namespaces, in a thread made for it.

    Namespaces belong to threads, and a thread's children are born into them: a process that `action` starts is an
    ordinary child of this one, with a PID, signals and pipes as usual, and yet lives on the host. `action` can start
    no threads, and sees the host's files but its own PID namespace.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            enter(pid, flags)
            outcome.set_result(action())
        except BaseException as error:  # noqa: BLE001 - handed on to the thread that waits
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name=f"inside-{pid}")
    thread.start()
    thread.join()
    return outcome.result()


class Program(subprocess.Popen[str]):
    """A program on a host: where a test fails beside it, it is killed, for waiting may last as long as it does."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


class LabHost:
    """One host.

    Attributes:
        name: its hostname, `node1` and so on, or `ctl`.
        address: its IPv4 address on eth0.
        pid: its init, as this machine numbers it.
    """

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid
        self._started: list[subprocess.Popen[str]] = []

    def __repr__(self) -> str:
        return f"LabHost({self.name}, {self.address})"

    def alive(self) -> bool:
        """Whether its init still runs."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def popen(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        start_new_session: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a program on this host, in its user's home; what it leaves ends with the host.

        Args:
            command: argument vector, or a line for `sh -c`.
            env: variables besides HOME, USER, PATH and the like; nothing else comes from this process.
            user: `root` (default) or `alice`.
            stdin: as for `subprocess.Popen`, like the other streams.
            stdout: where its output goes; None is this process's own.
            stderr: as `stdout`.
            start_new_session: make it the leader of a session and process group of its own.

        Returns:
            An ordinary child of this process; its text streams are UTF-8.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else command
        user = user or "root"
        credentials: dict[str, Any] = {}
        if user != "root":
            credentials = {"user": IDS[user], "group": IDS[user], "extra_groups": []}
        environment = {**self.environment(user), **(env or {})}

        def start() -> Program:
            return Program(
                arguments,
                env=environment,
                cwd=environment["HOME"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=start_new_session,
                encoding="utf-8",
                errors="replace",
                **credentials,
            )

        process = self._inside(start)
        self._started = [*(one for one in self._started if one.returncode is None), process]
        return process

    def end_programs(self) -> None:
        """Kill what `popen` started and still runs: a PID namespace ends only once its last process is waited for."""
        for process in self._started:
            process.kill()
            with process:  # waits, and closes its pipes
                pass

    def run(
        self,
        command: Command,
        *,
        check: bool = True,
        timeout: float = LONG_S,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end, as `subprocess.run` with its output captured.

        Raises:
            CommandFailed: it failed and `check` is set; the message holds its output.
            subprocess.TimeoutExpired: it took more than `timeout` seconds; it and its process group are killed.
        """
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if input is None else pipe
        process = self.popen(command, env=env, user=user, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)
        with process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode:
            raise CommandFailed(process.returncode, command, stdout, stderr)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def background(self, command: list[str], *, user: str | None = None) -> int:
        """Start a program that stays when its starter has gone, as an orphan of init; return its PID on this host."""
        line = f"setsid {shlex.join(command)} </dev/null >/dev/null 2>&1 & echo $!"
        return int(self.run(line, user=user).stdout)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file as root, with the directories above it."""

        def work() -> None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
            Path(path).chmod(mode)

        self._inside(work)

    def read(self, path: str) -> str:
        """Text of a file, read as root."""
        return self._inside(Path(path).read_text)

    def processes(self) -> list[tuple[int, str]]:
        """PID and command line of all that runs on this host; a process without one (a zombie) has an empty line."""

        def look() -> list[tuple[int, str]]:
            found = []
            for directory in Path("/proc").iterdir():
                if directory.name.isdigit():
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                        words = (directory / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                        found.append((int(directory.name), b" ".join(words).decode(errors="replace")))
            return sorted(found)

        return self._inside(look)

    def listeners(self) -> list[tuple[str, int]]:
        """Address and port of every listening TCP socket, as `ss` writes them."""
        fields = [line.split()[3] for line in self.run(["ss", "-Hltn"]).stdout.splitlines()]
        pairs = [field.rpartition(":") for field in fields]
        return sorted((address.strip("[]"), int(port)) for address, _, port in pairs)

    def runs(self, interface: str) -> bool:
        """Whether an interface is IFF_RUNNING by now; see :func:`tests.lab.machine.runs`."""
        return runs(self.pid, interface)

    def wait_until(self, condition: Callable[[], object], what: str, timeout: float = LONG_S) -> None:
        """Wait until the condition holds, or raise `LabError` that names what was waited for."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited > timeout:
                raise LabError(f"{self.name}: {what} did not happen within {timeout:.0f} s.")
            time.sleep(min(max(waited / 10, 0.02), 0.2))  # to look may cost more than what is waited for

    def _inside(self, action: Callable[[], T]) -> T:
        if not self.alive():
            raise LabError(f"Lab host {self.name} is dead.")
        return inside(self.pid, WHOLE_HOST, action)

    def environment(self, user: str) -> dict[str, str]:
        """The variables of a user's programs on this host."""
        # On the controller as after `source venv/bin/activate`; on hosts as sshd sets it.
        own = "".join(f"{folder()}:" for folder in controller_path) if self.name == CONTROLLER else ""
        return {
            "HOME": "/root" if user == "root" else f"/home/{user}",
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "PATH": own + SYSTEM_PATH,
            "TERM": os.environ.get("TERM", "dumb"),
        }
