"""The port that is meant: the argument's, a log's, the hosts file's, MASTER_PORT's, or torch's default."""

from __future__ import annotations

import os
import select
import stat
import sys

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.parsed import SourceLocation, read_bytes
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT
from nccl_doctor.nccl.messages import PortError, find_port_error

STDIN = "-"
MOST_BYTES = 64 << 20
"""Of a log; the error stands near the start of a rank's output."""


def wanted_port(argument: str | None, log: str | None, hosts_port: int | None) -> tuple[int, str | None]:
    """The port, and its source where that was not the argument; UsageError where nothing names one."""
    if argument is not None and argument != STDIN:
        return _port(argument, "PORT"), None
    source = log if log is not None else STDIN if argument == STDIN or _is_piped() else None
    named = "stdin" if source == STDIN else str(source)
    found = None if source is None else _find_error(source, named, must=log is not None or argument == STDIN)
    if found is not None and found.port is not None:
        return found.port, f"{named}: {found.meaning}"
    behind = f"{named} has no port in it; " if found else ""
    if hosts_port is not None:
        return hosts_port, f"{behind}the hosts file"
    if os.environ.get("MASTER_PORT"):
        return _port(os.environ["MASTER_PORT"], "MASTER_PORT"), f"{behind}MASTER_PORT"
    if found is not None:
        default = f"torchrun's is {DEFAULT_MASTER_PORT} unless it was told another"
        raise UsageError(f"{behind}give it: nccl-doctor fix-port PORT ({default})")
    return DEFAULT_MASTER_PORT, "torch's default, for no port was named"


def _port(text: str, source: str) -> int:
    return values.port(text, SourceLocation(source, is_file=False))


def _find_error(source: str, named: str, *, must: bool) -> PortError | None:
    """The error in a log; None for a pipe that we were not pointed to and that says nothing."""
    try:
        data = sys.stdin.buffer.read(MOST_BYTES) if source == STDIN else read_bytes(source, "a log", MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{named}: can't be read: {error.strerror}") from error
    found = find_port_error(data[:MOST_BYTES].decode(errors="replace"))
    if found is None and must:
        raise UsageError(f'{named}: no "Address already in use" in it; give the port itself')
    if found is not None and found.kind == "ephemeral":
        raise UsageError(f'{named}: "{found.line}": {found.meaning}')
    return found


def _is_piped() -> bool:
    """True where somebody has written into our stdin; a pipe that is open and empty, as under ssh, is left alone."""
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode) and bool(select.select([0], [], [], 0)[0])
    except OSError:  # closed
        return False
