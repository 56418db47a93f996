"""A query that asks the host's NCCL library which network interface NCCL would use.

``ncclGetUniqueId`` opens the bootstrap listener and returns the listener's address. The function requires neither a GPU
nor a GPU driver (tested with NCCL 2.14 to 2.32). A child process calls ``ncclGetUniqueId`` and exits with ``os._exit``,
because the function depends on the process's environment, works only once per process and leaves a thread running. No
file is written on the host. The child process is killed when the probe dies or at the deadline.

The code of this module also runs in the child process. probe/facts/software.py passes the code to the Python
interpreter of the training job, which runs :func:`main`. The module imports few other modules, because each import
takes time on every host.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys

TYPE_CHECKING = False  # re, socket, json and typing take 15 ms
if TYPE_CHECKING:
    from typing import Any

AF_INET, AF_INET6 = 2, 10  # Linux
UNIQUE_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES (src/nccl.h.in)
MAGIC_SINCE = 21602
"""First NCCL version (2.16.2) in which an eight-byte magic number precedes the address in the unique ID
(src/include/bootstrap.h).
"""

HIDES_THE_LINE = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT")
"""Environment variables that would redirect or hide NCCL's log line, or change the format of the line."""

_USING = rb"NCCL INFO Bootstrap ?: Using (?:\[0\])?(?:(\S+?):(\d+(?:\.\d+){3})|([^\s:]+):(\S+?))<\d+>"
"""Pattern of NCCL's log line with the network interface, such as ``Bootstrap : Using eth0:10.0.0.5<0>`` (NCCL 2.8 to
2.23).

Since NCCL 2.24.3, the log line has no space before its first colon. Before NCCL 2.8, the interface is printed as
``[0]eth0:…``. Only interface aliases have a colon in their name, and only IPv4 has aliases.
"""

_ANSWER = b"\nnccl-doctor-libnccl "


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


def variables(job: dict[str, str]) -> dict[str, str]:
    """Return the environment variables for the child process.

    The result contains the variables of this process and of the job, except the variables in HIDES_THE_LINE. NCCL_DEBUG
    is set to INFO.
    """
    merged = {**os.environ, **job}
    return {**{name: value for name, value in merged.items() if name not in HIDES_THE_LINE}, "NCCL_DEBUG": "INFO"}


def program(library: str, version: str = "") -> bytes:
    """Return a Python program that queries the libnccl.so.2 at the path ``library``.

    The program must run with the environment from :func:`variables`.

    The first line of the program executes the remaining bytes. The remaining bytes are source code, or bytecode if
    ``version`` is the version of this interpreter.
    """
    loader: Any = __loader__  # type: ignore[name-defined]  # every module has it; typeshed lacks it
    if version == sys.version:
        line = "import marshal; exec(marshal.loads(sys.stdin.buffer.read()))"
        rest = marshal.dumps(loader.get_code(__name__))
    else:
        line, rest = "exec(sys.stdin.buffer.read())", loader.get_source(__name__).encode()
    return f"{line}; main({library!r})\n".encode() + rest


def understand(output: bytes) -> dict[str, Any]:
    """Return a ``snapshot.LibncclAnswer`` from the output of the child process.

    If the query failed, ``error`` contains the reason.
    """
    import re

    log, separator, answer = output.rpartition(_ANSWER)
    if not separator:
        lines = output.decode(errors="replace").strip().splitlines()
        return report(error=f"the child that asked libnccl ended early: {lines[-1] if lines else 'no output'}")
    version, id_address, error = (part.decode(errors="replace") or None for part in answer.split(b"\0"))
    result = report(version, id_address, error)
    using = re.search(_USING, log)
    if result["error"] is None and using is not None:
        # the id contains the address of NCCL_COMM_ID if that is set; the log line has the local address
        name, address = using.group(1, 2) if using.group(1) else using.group(3, 4)
        result["interface"] = name.decode(errors="replace")
        result["address"] = address.decode(errors="replace").partition("%")[0]
    return result


def main(library: str) -> None:
    """Query libnccl, write the answer to stdout after NCCL's log lines, and exit."""
    data = spelt(call(library))
    ctypes.CDLL(None).fflush(None)  # NCCL prints through C's stdout, which os._exit would not flush
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)


def spelt(answer: dict[str, Any]) -> bytes:
    """Return an answer in the format that :func:`understand` parses."""
    fields = ((answer[name] or "").encode(errors="replace") for name in ("version", "address", "error"))
    return _ANSWER + b"\0".join(fields)


def call(library: str) -> dict[str, Any]:
    """Query libnccl, which reads this process's environment variables and writes its log to file descriptor 1.

    This function must be called only once per process.
    """
    try:
        nccl = ctypes.CDLL(library)
    except OSError as error:
        return report(error=f"libnccl can't be loaded: {error}")
    number = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(number))
    version = spell(number.value)
    unique_id = _UniqueId()
    result = nccl.ncclGetUniqueId(ctypes.byref(unique_id))
    if result == 0:
        return report(version, address=address_in(bytes(unique_id.internal), number.value))
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    words = nccl.ncclGetErrorString(result)
    if hasattr(nccl, "ncclGetLastError"):  # from 2.13
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        words = nccl.ncclGetLastError(None) or words
    return report(version, error=words.decode(errors="replace"))


def spell(number: int) -> str:
    """Convert a number from ``ncclGetVersion`` to a version string, such as 21805 to "2.18.5".

    Before NCCL 2.9, version numbers were shorter, such as 2708 for 2.7.8 (src/nccl.h.in).
    """
    thousand = 10000 if number >= 10000 else 1000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def address_in(unique_id: bytes, number: int) -> str | None:
    """Return the address in a unique ID of NCCL version ``number`` (``ncclBootstrapHandle`` in bootstrap.h)."""
    at = unique_id[8 if number >= MAGIC_SINCE else 0 :]
    family = int.from_bytes(at[:2], sys.byteorder)
    if family == AF_INET:
        return ".".join(map(str, at[4:8]))
    if family == AF_INET6:
        import socket

        return socket.inet_ntop(family, at[8:24])
    return None


def report(version: str | None = None, address: str | None = None, error: str | None = None) -> dict[str, Any]:
    """Return a ``snapshot.LibncclAnswer`` in JSON form, without the interface."""
    return {"version": version, "interface": None, "address": address, "error": error}
