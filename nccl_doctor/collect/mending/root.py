"""Ways to become root on a host, and a root shell; sudo's password goes only to its standard input."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from nccl_doctor.collect.mending.shell import ANSWER_S, LONGEST, MOST_OUTPUT
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.text.shell import clean, nested, script
from nccl_doctor.transport.base import AccessError, Allowance, Channel, FloodError, Transport

RootAccess = str
"""A way to become root, a key of :data:`SUDO`; or the reason why there is none."""

CONNECT_S = 30.0
SUDO = {"login": "", "sudo": "sudo -n ", "password": "sudo -k -S -p '' "}
"""Prefixes of a command for each way to become root: the login itself, ``sudo -n``, or sudo with a password."""

_LOOK_S = 0.3
_SORRY = frozenset({"sorry,", "incorrect"})
"""Messages of sudo(8) for a wrong password: "Sorry, try again.", "1 incorrect password attempt"."""

_ASK = script("id -u; sudo -n /bin/sh -c : 2>&1; echo status $?")


class RootRefusedError(Exception):
    """There is no way to become root on a host; the message is the reason."""


def node_at(node: Node, place: str | None) -> Node:
    """Return the node, or the host around its container for commands that belong outside."""
    if place is None or not place.startswith("outside"):
        return node
    return node.model_copy(update={"access": {k: v for k, v in node.access.items() if k != InsideOptions.engine}})


def root_access(transport: Transport, node: Node, place: str | None) -> RootAccess:
    """Return how to become root on a host, or the reason why that is impossible."""
    until = time.monotonic() + CONNECT_S
    try:
        channel = transport.open(node_at(node, place), f"LC_ALL=C exec /bin/sh -c {nested(_ASK)}", until)
        try:
            return read_root_access(list(_few_lines(channel, until)))
        finally:
            channel.close()
    except (AccessError, OSError, EOFError, FloodError) as error:
        return clean(error.failure.detail if isinstance(error, AccessError) else str(error) or "no answer in time")


def _few_lines(channel: Channel, until: float) -> Iterator[str]:
    allowance = Allowance(MOST_OUTPUT)
    while (line := channel.read_line(until)) is not None:
        allowance.spend(line)
        text = clean(line.decode(errors="replace"))[:LONGEST].strip()
        if text:
            yield text
        if text.startswith("status "):
            return


def read_root_access(lines: Sequence[str]) -> RootAccess:
    """Return how to become root, by the output of ``id -u`` and ``sudo -n``."""
    numbers = [line for line in lines if line.isdecimal()]
    if numbers[:1] == ["0"]:
        return "login"
    if lines[-1:] == ["status 0"]:
        return "sudo"
    said = [line for line in lines if not line.isdecimal() and not line.startswith("status ")]
    if any("a password is required" in line for line in said):
        return "password"
    return f"the login is not root, and sudo says: {said[-1]}" if said else "the login is not root, and sudo fails"


def wait_until_ready(channel: Channel, nonce: str, password: bytes | None, *, root: bool) -> str:
    """Return the host's boot id once the shell with this nonce answers; RootRefusedError if sudo refuses.

    The nonce is sent some time after the password, since sudo would take it for a second password. If sudo did not ask,
    the shell skips what comes before the nonce.
    """
    until = time.monotonic() + ANSWER_S
    allowance = Allowance(MOST_OUTPUT)
    waiting = [f"{nonce}\n".encode()]
    if password is not None:
        channel.send(password + b"\n", until)
    else:
        channel.send(waiting.pop(), until)
    while True:
        try:
            line = channel.read_line(min(until, time.monotonic() + _LOOK_S))
        except TimeoutError:
            _refuse_wrong_password(channel, until)
            if waiting:
                channel.send(waiting.pop(), until)
            continue
        if line is None:
            said = channel.stderr_tail().strip().splitlines()
            raise RootRefusedError(clean(said[-1])[:LONGEST] if said else "the shell there ended at once")
        allowance.spend(line)
        words = line.decode(errors="replace").split()
        if words[:2] == [nonce, "ready"]:
            if root and words[2:3] != ["0"]:
                raise RootRefusedError("sudo does not give root there")
            return words[3] if len(words) > 3 else ""


def _refuse_wrong_password(channel: Channel, until: float) -> None:
    if _SORRY.intersection(channel.stderr_tail().lower().split()):
        raise RootRefusedError("sudo did not accept the password") from None
    if time.monotonic() >= until:
        raise TimeoutError
