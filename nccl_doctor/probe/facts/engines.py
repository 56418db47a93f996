"""Routes, host names and other facts from which vLLM, SGLang, Ray and other engines derive a host's address.

No packet is sent for the route lookup, because connect(2) on a UDP socket only makes the kernel select a route and a
source address.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import TYPE_CHECKING, Any, Callable

from nccl_doctor.probe.facts.network import source_to
from nccl_doctor.probe.tools import Unavailable, encoded, fact, read, side_by_side

if TYPE_CHECKING:
    from nccl_doctor.probe.facts.software import Interpreter

PACKAGES = re.compile(
    r"(?:(vllm|sglang|ray|deepspeed|accelerate|ai_dynamo)|(nixl|mooncake_transfer_engine|netifaces)\w*)-([^-]+)\.dist-info",
    re.ASCII,
)
"""Pattern of the metadata directories (PEP 376) of vLLM, DeepSpeed, other engines and their dependencies.

SGLang lists network interfaces with netifaces or a fork of netifaces.
"""
OUTSIDE = {"route": (socket.AF_INET, "8.8.8.8"), "route6": (socket.AF_INET6, "2001:4860:4860::8888")}
"""Destination addresses for which engines look up a route to determine the host's own address.

The keys are fields of ``snapshot.Engines``.
"""


@fact("engines")
def read_engines(interpreter: Interpreter, deadline: float, launcher: str = "") -> dict[str, Any]:
    hostname = socket.gethostname()
    by_name = side_by_side(lambda how: LOOK_UPS[how](hostname), list(LOOK_UPS), deadline)
    try:
        folders = interpreter.torch()[1]
        packages: Any = installed(folders)
    except Unavailable as error:
        folders, packages = [], {"$unknown": str(error)}
    return {
        **{field: source_to(family, (address, 80))[0] for field, (family, address) in OUTSIDE.items()},
        **dict.fromkeys(LOOK_UPS),
        "configured": [],
        **by_name,
        "packages": packages,
        "ray_nodes": raylets() if "ray" in packages else [],
        "options": options_of(launcher, folders) if launcher else {},
    }


def options_of(launcher: str, folders: list[str]) -> dict[str, bool]:
    """Return a launcher's options, which are read from the launcher's source code without running the code.

    Return an empty dictionary if the launcher is not installed.
    """
    from nccl_doctor.probe.options import SOURCES, source_options

    options: dict[str, bool] = {}
    for path in SOURCES.get(launcher, ()):
        text = next(filter(None, (_source(f"{folder}/{path}") for folder in folders)), None)
        if text is None:
            return {}
        options.update(source_options(text))
    return options


MOST_SOURCE = 1 << 20


def _source(path: str) -> str | None:
    with contextlib.suppress(OSError):
        if os.path.isfile(path) and os.stat(path).st_size <= MOST_SOURCE:
            return read(path)
    return None


def installed(folders: list[str]) -> dict[str, str]:
    """Return the versions of engines and related packages that are installed in the directories of ``sys.path``.

    For each package, the first directory that contains the package is used.
    """
    versions: dict[str, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError):  # sys.path may name missing directories, or zip files
            for match in filter(None, map(PACKAGES.fullmatch, os.listdir(folder))):
                versions.setdefault(match[1] or match[2], match[3])
    return versions


def raylets() -> list[str]:
    """Return the addresses of the user's Ray nodes that are running in this network namespace."""
    addresses: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if read(f"/proc/{pid}/comm") == "raylet" and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                near = os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
                words = (read(f"/proc/{pid}/cmdline") or "").split("\0") if near else ()
                addresses.update(word.partition("=")[2] for word in words if word.startswith("--node_ip_address="))
    return sorted(addresses)


def _configured(name: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(encoded(name), None, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def _inet(name: str) -> str | None:
    try:
        return socket.gethostbyname(encoded(name))  # type: ignore[arg-type]  # bytes do as well
    except (OSError, UnicodeError):
        return None


def _fqdn(name: str) -> str:
    return os.fsdecode(socket.getfqdn(encoded(name)))  # type: ignore[arg-type]  # bytes come back where none answers


LOOK_UPS: dict[str, Callable[[str], object]] = {
    "configured": _configured,
    "by_inet": _inet,
    "by_fqdn": lambda name: _inet(_fqdn(name)),
    "fqdn": _fqdn,
}
"""Functions that look up the host's own name. The keys are fields of ``snapshot.Engines``."""
