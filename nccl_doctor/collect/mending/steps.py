"""Runs the steps of a plan: hosts in parallel, and the steps of each host in order."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic

from nccl_doctor.collect.mending.root import CONNECT_S, SUDO, RootAccess, RootRefusedError, node_at, wait_until_ready
from nccl_doctor.collect.mending.shell import RemoteShell, shell_program
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.mending import Step, StepResult
from nccl_doctor.text.shell import clean, nested
from nccl_doctor.transport.base import AccessError, Channel, FloodError, Transport
from nccl_doctor.transport.process import ProcessChannel

_AT_ONCE = 64  # hosts changed in parallel
_LOOK_S = 0.2
_MOST_SCRIPT = 96 << 10  # bytes of one shell's commands: Linux allows 128 KiB in one argument (MAX_ARG_STRLEN)


@dataclass
class Mending:
    """State that all hosts' steps share.

    Attributes:
        nodes: the hosts by name.
        transport: opens channels to them.
        roots: the way to become root on each host whose steps need it.
        password: sudo's password, for the hosts whose way is "password".
        on_host: called with a host's name once its steps have ended.
        stop: set if no further step may begin.
    """

    nodes: Mapping[str, Node]
    transport: Transport
    roots: Mapping[str | None, RootAccess]
    password: bytes | None = field(default=None, repr=False)
    on_host: Callable[[str], None] = lambda _host: None
    stop: threading.Event = field(default_factory=threading.Event)
    _open: set[Channel] = field(default_factory=set)

    def run(self, steps: Sequence[Step]) -> list[StepResult]:
        """Run the steps; an interrupt ends each host after its running command, a second one at once."""
        per_host: dict[str | None, list[Step]] = {}
        for step in steps:
            per_host.setdefault(step.host, []).append(step)
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
        """Close the connections, which ends the running commands."""
        for channel in tuple(self._open):
            channel.close()

    def _on_host(self, host: str | None, steps: Sequence[Step]) -> list[StepResult]:
        """Run a host's steps, similar ones in one shell, until the first failure."""
        results: list[StepResult] = []
        reason = ""
        for part in _parts(steps):
            if reason or self.stop.is_set():
                break
            try:
                for result in self._by_shell(part):
                    results.append(result)
                    if result.outcome != "done":
                        reason = "a step before it did not succeed"
                        break
            except (AccessError, RootRefusedError) as error:
                reason = clean(error.failure.detail if isinstance(error, AccessError) else f"it needs root: {error}")
            except (OSError, EOFError, FloodError) as error:
                reason = "no answer in time" if isinstance(error, TimeoutError) else clean(str(error))
        taken = {result.number for result in results}
        left = (step.number for step in steps if step.number not in taken)
        why = reason or "interrupted before it"
        return [*results, *(StepResult(number=each, host=host, outcome="not-run", reason=why) for each in left)]

    def _by_shell(self, steps: Sequence[Step]) -> Iterator[StepResult]:
        first = steps[0]
        way = self.roots.get(first.host, "neither the login nor sudo gives it") if first.root else "login"
        password = self.password if way == "password" else None
        if way not in SUDO or (way == "password" and password is None):
            raise RootRefusedError(way if way not in SUDO else "sudo asks for a password there (--ask-sudo)")
        nonce = f"ncdoctor-{secrets.token_hex(8)}"
        channel = self._shell(first, f"exec {SUDO[way]}/bin/sh -c {nested(shell_program(nonce, steps))}")
        self._open.add(channel)
        try:
            boot_id = wait_until_ready(channel, nonce, password, root=first.root)
            shell = RemoteShell(channel, nonce)
            for step in steps:
                if self.stop.is_set():
                    return
                if step.boot_id is not None and boot_id and step.boot_id != boot_id:
                    reason = "the host was restarted since it was checked"
                    yield StepResult(number=step.number, host=step.host, outcome="changed", reason=reason)
                    return
                yield shell.take(step)
        finally:
            self._open.discard(channel)
            channel.close()

    def _shell(self, step: Step, command: str) -> Channel:
        if step.host is None:
            return ProcessChannel(["/bin/sh", "-c", command])
        return self.transport.open(node_at(self.nodes[step.host], step.place), command, monotonic() + CONNECT_S)


def _parts(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield groups of steps for one shell: with the same place and user, and not too long together."""
    for _, alike in groupby(steps, key=lambda step: (step.place, step.root)):
        part: list[Step] = []
        size = 0
        for step in alike:
            # quoted again in the shell's program, and once more in the command that starts it
            length = 2 * sum(len(nested(text).text) for text in (step.command, step.reads, step.in_place) if text)
            if part and size + length > _MOST_SCRIPT:
                yield part
                part, size = [], 0
            part.append(step)
            size += length
        yield part
