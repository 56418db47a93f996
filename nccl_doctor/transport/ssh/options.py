"""Jump hosts: as ssh_config(5)'s ProxyJump writes them, and how many handshakes may go through one at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nccl_doctor.transport.ssh import SshOptions

MAX_HANDSHAKES = 8
"""At once through one jump host: sshd's MaxStartups (10:30:100) drops connections from the eleventh on."""

PLACE_S = 2.0
"""How long a host holds one of these at most: it then waits behind the jump host, which has let us in long ago."""

QUEUE = 6.0
"""How many times its own bound a host may wait for its turn at a jump host."""


class Places:
    """The handshakes that may go through one jump host at once; who is silent, dead or slow, gives its place back."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MAX_HANDSHAKES)

    @contextmanager
    def place(self, seconds: float) -> Iterator[bool]:
        """Holds a place, for :data:`PLACE_S` at most; False where none was free for so many seconds."""
        if not self._free.acquire(timeout=max(0.0, seconds)):
            yield False
            return
        once = threading.Lock()

        def give_back() -> None:
            if once.acquire(blocking=False):
                self._free.release()

        timer = threading.Timer(PLACE_S, give_back)
        timer.daemon = True
        timer.start()
        try:
            yield True
        finally:
            timer.cancel()
            give_back()


def split_jump(jumps: str) -> tuple[str, str, SshOptions]:
    """The jump hosts before the last one, the last one's name, and its user and port.

    ``"a,ops@b:2222"`` gives ``("a", "b", user ops, port 2222)``; IPv6 addresses stand in brackets.
    """
    before, _, last = jumps.rpartition(",")
    user, _, place = last.strip().removeprefix("ssh://").rpartition("@")
    name, separator, port = place.rpartition(":")
    if not separator or not port.isdigit() or (":" in name and not name.endswith("]")):
        name, port = place, ""
    return before, name.strip("[]"), SshOptions(user=user or None, port=int(port) if port else None)
