"""The lab itself: up, down, and what stands between."""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, final

from ruamel.yaml import YAML

from tests.lab.errors import CommandFailed, LabError
from tests.lab.host import NETWORK, LabHost, inside
from tests.lab.requirements import SYSTEM_PATH, require_lab
from tests.patience import LONG_S

_PROJECT = Path(__file__).resolve().parents[2]
_STOP_S = 20.0

hosts_python: list[Callable[[], str]] = [lambda: sys.executable]
"""The interpreter that a hosts file names where nothing else is asked for."""

supervisors_python: list[Callable[[], str]] = [lambda: sys.executable]
"""The interpreter of a lab's supervisor, where it need not outlive this process."""


@final
class Lab:
    """A running lab: `hosts`, and `controller`, from which the tool is run. A context manager that takes it down.

    It ends with the process that brought it up, even when that is killed, unless it is `detached`.
    """

    def __init__(self, supervisor: int, hosts: list[LabHost]) -> None:
        """Take hold of a lab that runs.

        Args:
            supervisor: PID of its supervisor.
            hosts: its hosts, the controller last.
        """
        self.supervisor = supervisor
        self.hosts = hosts[:-1]
        self.controller = hosts[-1]
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def up(cls, hosts: int = 3, *, shm_size: str = "1g", detached: bool = False) -> "Lab":
        """Build a lab; every sshd answers when this returns.

        Args:
            hosts: how many hosts besides the controller.
            shm_size: size of each /dev/shm, as tmpfs takes it.
            detached: it outlives this process, until `down`.

        Raises:
            LabError: this machine can't; one sentence says what is missing.
        """
        require_lab()
        # what outlives this process holds nothing of its caller's: `scripts/lab up 2>&1 | tail` would never end
        own_errors = tempfile.TemporaryFile("w+") if detached else None  # noqa: SIM115 - closed below
        process = subprocess.Popen(
            [sys.executable if detached else supervisors_python[-1](), "-m", "tests.lab.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=own_errors,
            text=True,
            cwd=_PROJECT,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"hosts": hosts, "shm_size": shm_size, "detached": detached}) + "\n")
        process.stdin.flush()
        answer = json.loads(
            process.stdout.readline() or '{"error": "The lab\'s supervisor exited and printed nothing."}'
        )
        process.stdout.close()
        if detached or "error" in answer:
            process.stdin.close()
            process.wait()
        if own_errors is not None:
            with own_errors:
                own_errors.seek(0)
                sys.stderr.write(own_errors.read())
        if "error" in answer:
            raise LabError(answer["error"])
        lab = cls(answer["supervisor"], [LabHost(**host) for host in answer["hosts"]])
        lab._process = None if detached else process
        return lab

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """End every process of the lab, and with them its namespaces, mounts and links. A second call does nothing."""
        for host in [*self.hosts, self.controller]:
            host.end_programs()
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.supervisor)
            try:
                _end(descriptor)
            finally:
                os.close(descriptor)
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait()

    def host(self, name: str) -> LabHost:
        """The host of this name, the controller among them."""
        hosts = {host.name: host for host in [*self.hosts, self.controller]}
        if name not in hosts:
            raise LabError(f"No lab host is named {name!r}; there are {', '.join(hosts)}.")
        return hosts[name]

    def others(self, host: LabHost) -> list[LabHost]:
        """All hosts but this one and the controller."""
        return [other for other in self.hosts if other.name != host.name]

    def switch(self, command: list[str]) -> str:
        """Run a program in the network between the hosts, where each host's port has its name; return its stdout."""

        def work() -> subprocess.CompletedProcess[str]:
            environment = {"PATH": SYSTEM_PATH}
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)

        done = inside(self.supervisor, NETWORK, work)
        if done.returncode:
            raise CommandFailed(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def kill(self, host: LabHost) -> None:
        """Cut a host's power: its link goes first, so that its peers hear nothing of it."""
        self.switch(["ip", "link", "set", host.name, "down"])
        os.kill(host.pid, signal.SIGKILL)
        host.end_programs()
        host.wait_until(lambda: not host.alive(), "its end")

    def hosts_file(self, *, by_address: bool = False, **extra: object) -> str:
        """Text of a hosts file of all hosts.

        Args:
            by_address: list addresses instead of names.
            extra: further keys, or others for `python` (see :data:`hosts_python`) and `hosts`; None leaves a key out.
        """
        names = [host.address if by_address else host.name for host in self.hosts]
        content: dict[str, object] = {"python": hosts_python[-1](), **extra}
        content.setdefault("hosts", names)
        text = io.StringIO()
        yaml = YAML()
        yaml.dump({key: value for key, value in content.items() if value is not None}, text)
        return text.getvalue()


class MakeLab(Protocol):
    """The fixture `make_lab`."""

    def __call__(self, hosts: int = 3, *, shm_size: str = "1g") -> Lab:
        """Build a lab that the test's end takes down."""
        ...


def _end(descriptor: int) -> None:
    """End the process behind a pidfd, gently while it answers; return when it has gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal.pidfd_send_signal(descriptor, number)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(_STOP_S * 1000):
            return
    raise LabError(f"The lab's supervisor did not end within {2 * _STOP_S:.0f} s of being killed.")
