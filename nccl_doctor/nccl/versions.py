"""NCCL versions, and how NCCL's choice of interface changed between versions.

Each rule that changed is a field of :class:`Behaviour`. :data:`CLASSES` contains every combination of rules that any
version has used, so all these combinations can be tried if the version is unknown.

The module defines the environment variables for torch's flight recorder, NCCL's log and Python's stack traces, which
help to diagnose the next failure of a job. torch 2.2 introduced the flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE in
torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp). torch 2.9 introduced variable names that begin with TORCH_FR
(FlightRecorder.hpp) and deprecated the older names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

VersionNumbers = tuple[int, int, int]

LAST_OF_SERIES = 999
"""The patch level that is assumed for a version without a patch level, such as "2.28"."""

_VERSION = re.compile(r"\s*v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3})(?:\.\S*)?)?(?:[-+]\S*)?\s*")


@dataclass(frozen=True)
class Behaviour:
    """The rules by which a range of NCCL versions chooses interfaces."""

    # "^=" is read as "exclude" and "exact". Before 2.7.3 only the first character is a sign (src/misc/utils.cc
    # ``parseStringList`` of 2.4, taken for 2.5 and 2.6 too; src/include/socket.h ``findInterfaces`` of 2.7.3).
    both_signs: bool = False
    # its message if nothing is found. From 2.4.8 on the bootstrap searches itself (src/bootstrap.cc
    # ``bootstrapNetInit``), before it asked NET/Socket (src/transport/net_socket.cc).
    bootstrap_words: str = "NET/Socket : no interface found"
    conf_file: bool = False  # NCCL_CONF_FILE is read, from 2.23.4 (src/misc/param.cc ``initEnv``)
    # the ncclResult_t in that case: 3 ncclInternalError, from 2.24.3 on 5 ncclInvalidUsage (src/bootstrap.cc)
    nothing_found: int = 3
    # interfaces without IFF_RUNNING are skipped, from 2.28.3 on (src/misc/socket.cc, from 2.29.2 on src/os/linux.cc
    # ``ncclOsFindInterfaces``)
    running_only: bool = False
    # "virbr" follows "lo" in the default order, from 2.28.3 on (src/misc/socket.cc ``ncclFindInterfaces``)
    virbr_last: bool = False


_SINCE_2_4_8 = replace(Behaviour(), bootstrap_words="Bootstrap : no socket interface found")
_SINCE_2_7_3 = replace(_SINCE_2_4_8, both_signs=True)
_SINCE_2_23_4 = replace(_SINCE_2_7_3, conf_file=True)
_SINCE_2_24_3 = replace(_SINCE_2_23_4, nothing_found=5)
CLASSES: tuple[
    tuple[VersionNumbers, Behaviour], ...
] = (  # each behaviour with the first version that has it, oldest first
    ((2, 4, 0), Behaviour()),
    ((2, 4, 8), _SINCE_2_4_8),
    ((2, 7, 3), _SINCE_2_7_3),
    ((2, 23, 4), _SINCE_2_23_4),
    ((2, 24, 3), _SINCE_2_24_3),
    ((2, 28, 3), replace(_SINCE_2_24_3, running_only=True, virbr_last=True)),
)

OLDEST = CLASSES[0][0]
CONF_FILE = next(since for since, how in CLASSES if how.conf_file)  # the first version that reads NCCL_CONF_FILE

NEWEST = (2, 32)  # the last series whose variables and values are known here

_TORCH_2_8 = (2, 8)
NCCL_OF_TORCH_2_8: VersionNumbers = (2, 27, 3)
"""The NCCL version that the wheels of torch 2.8 require for every CUDA version.

Older torch wheels for CUDA 11 required NCCL 2.21.5. Sources: RELEASE.md and .ci/docker/ci_commit_pins in pytorch, and
the requirements of the wheels.
"""


def parse_version(text: str) -> VersionNumbers:
    """Return the version that a text such as "2.27.7", "2.27.5-1" or "2.28" represents.

    Raise ValueError if the text is not a version or if the version is older than 2.4.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an NCCL version; give it as in 2.27.7")
    major, minor, patch = match.groups()
    version = (int(major), int(minor), int(patch) if patch is not None else LAST_OF_SERIES)
    if version < OLDEST:
        raise ValueError(f"NCCL {text.strip()} is older than 2.4, the first one whose choice is known here")
    return version


def behaviour(version: VersionNumbers) -> Behaviour:
    """Return the rules of a version. Versions before 2.4 get the rules of 2.4."""
    return max((entry for entry in CLASSES if entry[0] <= max(version, OLDEST)), key=lambda entry: entry[0])[1]


def newer(version: VersionNumbers | None) -> str | None:
    """Return a phrase for a version that is newer than all known versions, or None for any other version."""
    if version is None or version[:2] <= NEWEST:
        return None
    return f"so it was up to {'.'.join(map(str, NEWEST))}; this is {show(version)}"


def oldest_with(torch: str) -> VersionNumbers:
    """Return the oldest NCCL version that this version of torch might use."""
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})", torch)
    at_least = numbers is not None and (int(numbers[1]), int(numbers[2])) >= _TORCH_2_8
    return NCCL_OF_TORCH_2_8 if at_least else OLDEST


def show(version: VersionNumbers) -> str:
    """Return a version in the usual notation, such as "2.27.7", or "2.28" without a patch level."""
    return ".".join(str(part) for part in version if part != LAST_OF_SERIES)


FIRST = (2, 2)
RENAMED = (2, 9)
ENTRIES = "2000"  # collectives that each rank keeps; torch 2.13's default


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdecimal())


def recorder(torch: str | None, prefix: str) -> dict[str, str]:
    """Return variables that make each rank write its last collectives to a file named ``prefix`` plus the rank.

    If ``torch`` is None, the variables work with any version of torch. Before torch 2.2, which introduced the flight
    recorder, the result is empty.
    """
    known = None if torch is None else release(torch)
    if known is not None and known < FIRST:
        return {}
    new = {"TORCH_FR_BUFFER_SIZE": ENTRIES, "TORCH_FR_DUMP_TEMP_FILE": prefix}
    old = {"TORCH_NCCL_TRACE_BUFFER_SIZE": ENTRIES, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}
    sizes = {**new, **old} if known is None else new if known >= RENAMED else old
    return {**sizes, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


DIAGNOSTICS = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"}
"""Variables that make a new communicator run NCCL's own diagnostics, which take milliseconds, before the communicator
sends data.
"""
DIAGNOSTICS_SINCE: VersionNumbers = (2, 31, 0)
"""The first NCCL version that reads the variables in :data:`DIAGNOSTICS`. Older versions ignore these variables."""


def diagnosable(torch: str | None, prefix: str) -> dict[str, str]:
    """Return variables for torch's flight recorder, NCCL's log (since NCCL 2.2.12) and Python's stack traces."""
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{prefix}.nccl.%h.%p"}
    return {**recorder(torch, f"{prefix}.trace_rank_"), **log, "PYTHONFAULTHANDLER": "1"}
