"""Determines how to become root on a host. A password is sent only to a ``sudo`` program that root owns."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from nccl_doctor.act.shell import ANSWER_S, LONGEST, MOST_OUTPUT
from nccl_doctor.model.acts import Machine
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.text.shell import Line, argument, clean, nested, script
from nccl_doctor.transport.base import AccessError, Allowance, Channel, FloodError, Transport

CONNECT_S = 30.0
PROGRAMS = ("/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo")
"""Paths at which nccl-doctor looks for ``sudo``.

A program named sudo elsewhere on PATH could belong to any user.
"""
_LOOK_S = 0.3
_NEEDS_PASSWORD = re.compile(r"a password is required|interact(?:ive authentication|ion) is required", re.IGNORECASE)
"""Pattern for the message with which ``sudo -n`` asks for a password. The second form is that of sudo-rs."""
_SORRY = re.compile(r"(?<!\S)(?:sorry,|incorrect)(?!\S)|authentication failed, try again", re.IGNORECASE)
"""Pattern for messages about a wrong password: "Sorry, try again." and "1 incorrect password attempt" are those of
sudo, and "Authentication failed, try again." is that of sudo-rs.
"""
_ASK = script(
    "id -u; for sudo in {programs}; do "
    'if [ -u "$sudo" ] && [ "$(stat -L -c %u "$sudo")" = 0 ]; then '
    '"$sudo" -n /bin/sh -c : 2>&1; echo status $? "$sudo"; exit; fi; done; echo status none',
    programs=[argument(path) for path in PROGRAMS],
)


@dataclass(frozen=True)
class RootAccess:
    """A way to become root on a host, or the reason why there is no such way.

    The possible ways are a login as root, ``sudo -n``, and ``sudo`` with a password.
    """

    way: Literal["login", "sudo", "password", "none"]
    sudo: str = ""
    reason: str = ""

    @property
    def prefix(self) -> Line:
        sudo = argument(self.sudo)
        if self.way == "sudo":
            return script("{sudo} -n", sudo=sudo)
        return script("{sudo} -k -S -p ''", sudo=sudo) if self.way == "password" else script("")


LOGIN = RootAccess("login")


class RootRefusedError(Exception):
    """Error raised if root access to a host is refused; the message gives the reason."""


def node_at(node: Node, *, outside: bool) -> Node:
    """Return the node or, if ``outside`` is true, the host on which the node's container runs."""
    if not outside:
        return node
    return node.model_copy(update={"access": {k: v for k, v in node.access.items() if k != InsideOptions.engine}})


def unshared(node: Node) -> Node:
    """Return the node with SSH connection sharing (ControlPath) turned off.

    A shared connection would work even if new SSH connections were blocked.
    """
    options = node.options(SshOptions)
    alone = {**node.access.get(SshOptions.engine, {}), "options": (*options.options, "ControlPath=none")}
    return node.model_copy(update={"access": {**node.access, SshOptions.engine: alone}})


def root_access(transport: Transport, node: Node, *, outside: bool) -> RootAccess:
    until = time.monotonic() + CONNECT_S
    try:
        channel = transport.open(node_at(node, outside=outside), f"LC_ALL=C exec /bin/sh -c {nested(_ASK)}", until)
        try:
            return read_root_access(list(_few_lines(channel, until)))
        finally:
            channel.close()
    except (AccessError, OSError, EOFError, FloodError) as error:
        why = error.failure.detail if isinstance(error, AccessError) else str(error) or "no answer in time"
        return RootAccess("none", reason=clean(why))


def _few_lines(channel: Channel, until: float) -> Iterator[str]:
    allowance = Allowance(MOST_OUTPUT)
    while (line := channel.read_line(until)) is not None:
        allowance.spend(line)
        text = clean(line.decode(errors="replace"))[:LONGEST].strip()
        if text:
            yield text
        if text.partition(" ")[0] == "status":
            return


_STATUS = re.compile(rf"status (\d{{1,3}}) ({'|'.join(map(re.escape, PROGRAMS))})")


def read_root_access(lines: Sequence[str]) -> RootAccess:
    """Return how to become root, according to the output of ``id -u`` and ``sudo -n``."""
    if [line for line in lines if line.isdecimal()][:1] == ["0"]:
        return LOGIN
    ended = _STATUS.fullmatch(lines[-1]) if lines else None
    if ended is None:
        return RootAccess("none", reason="the login is not root, and there is no sudo of root's")
    if ended[1] == "0":
        return RootAccess("sudo", ended[2])
    messages = [line for line in lines[:-1] if not line.isdecimal()]
    if any(map(_NEEDS_PASSWORD.search, messages)):
        return RootAccess("password", ended[2])
    why = f"and sudo says: {messages[-1]}" if messages else "and sudo fails"
    return RootAccess("none", reason=f"the login is not root, {why}")


def wait_until_ready(channel: Channel, nonce: str, password: bytes | None, *, root: bool) -> Machine:
    """Wait until the shell has printed the nonce and is ready, and return the identity of the machine.

    Raise RootRefusedError if sudo refuses access. The password is sent once, as the first line of input. The shell
    skips the password line if sudo does not ask for a password.
    """
    until = time.monotonic() + ANSWER_S
    allowance = Allowance(MOST_OUTPUT)
    if password is not None:
        channel.send(password + b"\n", until)
    while True:
        try:
            line = channel.read_line(min(until, time.monotonic() + _LOOK_S))
        except TimeoutError:
            _refuse_wrong_password(channel)
            if time.monotonic() >= until:
                raise
            continue
        if line is None:
            _refuse_wrong_password(channel)
            messages = channel.stderr_tail().strip().splitlines()
            why = clean(messages[-1])[:LONGEST] if messages else "the shell there ended at once"
            raise RootRefusedError(without(password, why))
        allowance.spend(line)
        words = line.decode(errors="replace").split()
        if words[:2] == [nonce, "ready"] and len(words) == 6:
            if root and words[2] != "0":
                raise RootRefusedError("sudo does not give root there")
            boot_id, machine_id, host_keys = ("" if word == "-" else clean(word)[:LONGEST] for word in words[3:])
            return Machine(boot_id=boot_id, machine_id=machine_id, host_keys=host_keys)


def _refuse_wrong_password(channel: Channel) -> None:
    if _SORRY.search(channel.stderr_tail()):
        raise RootRefusedError("sudo did not accept the password") from None


def without(password: bytes | None, text: str) -> str:
    """Mask the password in a host's output, since the host could have echoed the password."""
    secret = (password or b"").decode(errors="replace")
    return text.replace(secret, "***") if secret else text
