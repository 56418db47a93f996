"""Which port is meant: the argument, a log, the hosts file, MASTER_PORT, or torch's default."""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import TYPE_CHECKING

from nccl_doctor.errors import UsageError
from nccl_doctor.model.ports import as_port

if TYPE_CHECKING:
    from nccl_doctor.nccl.port_errors import PortError


DEFAULT = 29500
"""As model.DEFAULT_MASTER_PORT, without its import."""
STDIN = "-"
MOST_BYTES = 64 << 20
"""Of a log; the error stands near the start of a rank's output."""


def wanted_port(argument: str | None, log: str | None, hosts_port: int | None) -> tuple[int, str | None]:
    """The port, and what said so where that was not the argument.

    Raises:
        UsageError: no port, or a log that says nothing of a port in use.
    """
    if argument is not None and argument != STDIN:
        return _port(argument, "PORT"), None
    source = log if log is not None else STDIN if argument == STDIN or _piped() else None
    told = None if source is None else _from_log(source, must=log is not None or argument == STDIN)
    if told is not None and told.port is not None:
        return told.port, f"{_name(source)}: {told.meaning}"
    behind = f"{_name(source)} has no port in it; " if told else ""
    if hosts_port is not None:
        return hosts_port, f"{behind}the hosts file"
    if os.environ.get("MASTER_PORT"):
        return _port(os.environ["MASTER_PORT"], "MASTER_PORT"), f"{behind}MASTER_PORT"
    if told is not None:
        raise UsageError(
            f"{behind}give it: nccl-doctor fix-port PORT (torchrun's is {DEFAULT} unless it was told another)"
        )
    return DEFAULT, "torch's default"


def _port(text: str, source: str) -> int:
    number = as_port(text)
    if number is not None:
        return number
    # only for its sentence: it takes a fifth of the command's time to import
    from nccl_doctor.inventory import values
    from nccl_doctor.inventory.parsed import SourceLocation

    return values.port(text, SourceLocation(source, is_file=False))


def _from_log(source: str, *, must: bool) -> PortError | None:
    """What a log says; None for a pipe that we were not pointed to and that says nothing."""
    from nccl_doctor.nccl.port_errors import find

    found = find(_read(source))
    if found is None and must:
        raise UsageError(f'{_name(source)}: no "Address already in use" in it; give the port itself')
    if found is not None and found.kind == "ephemeral":
        raise UsageError(f'{_name(source)}: "{found.line}": {found.meaning}')
    return found


def _read(source: str) -> str:
    from nccl_doctor.inventory.parsed import read_bytes

    try:
        if source == STDIN:
            return sys.stdin.buffer.read(MOST_BYTES).decode(errors="replace")
        return read_bytes(source, "a log", MOST_BYTES)[:MOST_BYTES].decode(errors="replace")
    except OSError as error:
        raise UsageError(f"{_name(source)}: can't be read: {error.strerror}") from error


def _piped() -> bool:
    """Whether somebody has written into our stdin; a pipe that is open and empty, as under ssh, is left alone."""
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode) and bool(select.select([0], [], [], 0)[0])
    except OSError:  # closed
        return False


def _name(source: str | None) -> str:
    return "stdin" if source == STDIN else str(source)
