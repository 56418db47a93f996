"""Which port an "Address already in use" is about, by the wordings of torch, gloo's launchers and NCCL.

Wordings, with the torch that first has each (torch/csrc/distributed/c10d/socket.cpp, TCPStoreLibUvBackend.cpp):

- up to 1.10: ``RuntimeError: Address already in use``, without the port
- 1.11: ``The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).``, and the same for
  ``0.0.0.0`` or, where the address has no text, ``?UNKNOWN?``; errno 13 for a port that only root may have
- 2.1: ``listen fd 5 is bound to port 29501, expected to be bound to port 29500``
- 2.2 with libuv, the default since 2.4: ``useIpv6: 0, code: -98, name: EADDRINUSE``, without the port
- 2.7: the same with ``port: 29500, useIpv6: false`` in front; code -48 on macOS

NCCL's own ``Call to bind failed`` is something else: it asks the kernel for any free port (src/misc/socket.cc), so it
fails where the ephemeral ports have run out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["in-use", "privileged", "handed-over", "ephemeral"]

_NCCL = re.compile(r"NCCL\s+WARN\s+Call\s+to\s+bind\s+failed[\s?:]*(?:Address\s+already\s+in\s+use)?")
_IN_USE = r"(?:98|48)"
_PORT = r"(?P<port>\d{1,5})"
_BIND = r"failed\s+to\s+(?:bind|listen)\b.{0,80}?"
_HANDED = r"listen\s+fd\s+\d+\s+is\s+bound\s+to\s+port\s+\d+,\s+expected\s+to\s+be\s+bound\s+to\s+port\s+"
_WORDINGS: tuple[tuple[Kind, str], ...] = (
    ("in-use", rf"{_BIND}:{_PORT}\s+\(errno:\s+{_IN_USE}\b"),
    ("in-use", rf"\bport:\s+{_PORT},\s+useIpv6:.{{0,40}}?\bcode:\s+-{_IN_USE}\b"),
    ("in-use", rf"\bon\s+port\s+`?{_PORT}`?,\s+but\s+another\s+process"),
    ("in-use", rf"\b[Pp]ort\s+[`']?{_PORT}[`']?\s+(?:is|was)\s+(?:already\s+)?(?:in\s+use|occupied|taken)"),
    ("privileged", rf"{_BIND}:{_PORT}\s+\(errno:\s+13\b"),
    ("privileged", rf"\bport:\s+{_PORT},\s+useIpv6:.{{0,40}}?\bcode:\s+-13\b"),
    ("handed-over", rf"{_HANDED}{_PORT}"),
    ("in-use", r"\bEADDRINUSE\b|\[Errno\s+(?:98|48)\]|\berrno:\s+(?:98|48)\b|[Aa]ddress\s+already\s+in\s+use"),
    ("privileged", r"\bEACCES\b"),
)

_MEANS: dict[Kind, str] = {
    "in-use": "torch could not listen on it: address already in use",
    "privileged": "torch may not listen on it: ports below 1024 are for root (net.ipv4.ip_unprivileged_port_start)",
    "handed-over": "torch was handed a socket that is bound to another port",
    "ephemeral": "that is NCCL's own bind and not the master port's: NCCL takes any port that the kernel gives it, so "
    "these have run out. Widen net.ipv4.ip_local_port_range, or start fewer ranks on a host",
}


@dataclass(frozen=True)
class PortError:
    """What a text says.

    Attributes:
        kind: "in-use"; "privileged": for root; "handed-over": a socket for another port; "ephemeral": NCCL's own bind.
        port: None where the wording has none; it is MASTER_PORT's then, but for "ephemeral".
        line: the words that say it.
    """

    kind: Kind
    port: int | None
    line: str

    @property
    def meaning(self) -> str:
        """What the error says of the port, as one phrase."""
        return _MEANS[self.kind]


def find(text: str) -> PortError | None:
    """The error in a log or in a few pasted lines, which a terminal may have wrapped; None where there is none.

    Of several the one that names its port counts, and NCCL's only where torch has said nothing.
    """
    rest = _NCCL.sub("", text)
    for kind, pattern in _WORDINGS:
        match = re.search(pattern, rest, re.DOTALL)
        if match is not None:
            found = match.groupdict().get("port")
            port = int(found) if found and 0 < int(found) <= 65535 else None
            return PortError(kind, port, " ".join(match[0].split()))
    match = _NCCL.search(text)
    return None if match is None else PortError("ephemeral", None, " ".join(match[0].split()))
