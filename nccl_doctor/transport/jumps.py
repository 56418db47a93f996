"""Jump hosts as ssh_config(5)'s ProxyJump writes them."""

from __future__ import annotations

from nccl_doctor.transport.ssh_options import SshOptions

MAX_HANDSHAKES = 8
"""At once through one jump host: sshd's MaxStartups (10:30:100) drops connections from the eleventh on."""

QUEUE = 6.0
"""How many times its own bound a host may wait for its turn at a jump host."""


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
