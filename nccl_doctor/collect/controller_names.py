"""What this machine makes of the names in the hosts file."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable

from nccl_doctor.snapshot.values import IpAddress, ip_address
from nccl_doctor.text.inet import numeric
from nccl_doctor.transport.ssh.settings import ssh_alias

_AT_ONCE = 64
_Answers = dict[str, tuple[IpAddress, ...]]


def look_up(names: Iterable[str], within_s: float) -> _Answers:
    """Addresses by name, of getaddrinfo(3), or of ~/.ssh/config where only that knows the name; without the others.

    The resolver has no deadline of ours, so it is left behind in its thread.
    """
    wanted = [name for name in dict.fromkeys(names) if numeric(name) is None]
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in wanted:
        left.put(name)
    answers: queue.SimpleQueue[tuple[str, tuple[IpAddress, ...]]] = queue.SimpleQueue()
    for number in range(min(_AT_ONCE, len(wanted))):
        threading.Thread(target=_work, args=(left, answers), name=f"name-{number}", daemon=True).start()
    deadline = time.monotonic() + within_s
    found: _Answers = {}
    for _ in wanted:
        try:
            name, addresses = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if addresses:
            found[name] = addresses
    return found


def _work(left: queue.SimpleQueue[str], answers: queue.SimpleQueue[tuple[str, tuple[IpAddress, ...]]]) -> None:
    while True:
        try:
            name = left.get_nowait()
        except queue.Empty:
            return
        answers.put((name, _addresses(name) or _addresses(ssh_alias(name))))


def _addresses(name: str | None) -> tuple[IpAddress, ...]:
    if name is None:
        return ()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()  # a name that does not resolve confirms nothing
    return tuple(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in found))
