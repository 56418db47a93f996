"""Could not look; small files of /proc and /sys; and calls that are not waited for beyond a deadline.

They stand apart from the collectors of facts: ``fix-port`` reads them too, and imports nothing that it can do without.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Dict, Set, TypeVar


class Unavailable(Exception):  # noqa: N818 - it is no error of ours
    """A fact can't be had here; the message is a phrase that can stand behind "unknown: "."""


COLLECTORS: Dict[str, Callable[..., object]] = {}
SLOW: Set[str] = set()
Collector = TypeVar("Collector", bound=Callable[..., object])


def fact(field: str, *, slow: bool = False) -> Callable[[Collector], Collector]:
    """Registers a collector of a field of snapshot.HostFacts.

    What it needs it names as its parameters, out of ``given`` in probe/facts/__init__.py; others have defaults.

    Args:
        field: answers with it, in JSON form; an exception costs this fact alone.
        slow: starts a program, and is therefore begun first.
    """

    def register(collector: Collector) -> Collector:
        COLLECTORS[field] = collector
        SLOW.update({field} if slow else ())
        return collector

    return register


MOST_FILE_BYTES = 1 << 23
"""Bytes of one file. Fifty thousand sockets of /proc/net/tcp fit; anybody can make more in a namespace of their own."""
FILE_PIECE = 1 << 16


@fact("port_range")
def port_range(folder: str = "/proc/sys/net/ipv4") -> dict[str, Any]:
    """snapshot.PortRange."""
    told = read(f"{folder}/ip_local_port_range")
    if told is None:
        raise Unavailable(f"{folder}/ip_local_port_range can't be read")
    low, high = told.split()
    return {"low": int(low), "high": int(high), "reserved": read(f"{folder}/ip_local_reserved_ports") or ""}


def read(path: str) -> str | None:
    """A file's text without surrounding blanks, at most LIMIT of it; None where it is not there, or hidden."""
    data = bytearray()
    try:
        with open(path, "rb", buffering=0) as file:
            # in pieces: a sysctl answers a buffer of 4 MiB with ENOMEM (proc_sys_call_handler, fs/proc/proc_sysctl.c)
            while len(data) < MOST_FILE_BYTES and (piece := file.read(FILE_PIECE)):
                data += piece
    except OSError:
        return None
    return data.decode("utf-8", "surrogateescape").strip()


WORKERS = 16
"""Look-ups at once: name servers drop queries of a client that floods them."""


def side_by_side(look: Callable[[str], Any], names: list[str], deadline: float) -> dict[str, Any]:
    """The answers that came before the deadline, by name; threads that still wait are left to end with the probe."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for name in names:
        todo.put(name)

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            done.put((name, look(name)))

    for _ in range(min(WORKERS, len(names))):
        threading.Thread(target=work, name="resolve", daemon=True).start()
    found: dict[str, Any] = {}
    while len(found) < len(names):
        try:
            name, answer = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    return found
