"""Runs real libnccl in network namespaces of its own and hands back what it chose.

The library is loaded once and never called; each layout is a forked child in a new namespace, each setting a forked
child of that one. So a trial costs a fork instead of an interpreter and 200 MB of loading.

Started as ``python -m tests.nccl.libnccl LIBRARY``; reads a JSON list of layouts, writes one of observations.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from nccl_doctor.probe.facts.libnccl import call, spelt, understand
from nccl_doctor.snapshot.network import Interfaces
from tests.nccl.layouts import Layout

TIMEOUT_S = 600
T = TypeVar("T")
CLONE_NEWNET = 0x40000000
FLAGS = {0x1: "up", 0x2: "broadcast", 0x8: "loopback", 0x10: "pointopoint", 0x40: "running", 0x1000: "multicast"}
"""IFF_* of linux/if.h."""


@dataclass(frozen=True)
class Observation:
    """A host as the kernel showed it, and libnccl's answer under each setting (see probe/facts/software.py)."""

    interfaces: Interfaces
    answers: tuple[dict[str, Any], ...]


def observe(library: Path, layouts: list[Layout]) -> list[Observation]:
    """What this libnccl chooses on each layout. Needs root, or unprivileged user namespaces.

    Raises:
        RuntimeError: the layouts could not be made or the library not be asked.
    """
    asked = json.dumps([asdict(one) for one in layouts])
    command = [sys.executable, "-m", "tests.nccl.libnccl", str(library)]
    if os.geteuid() != 0:
        command = ["unshare", "--user", "--map-root-user", *command]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, input=asked, env=clean, text=True, capture_output=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"the layouts could not be tried: {done.stderr.strip()}")
    return [
        Observation(Interfaces.model_validate(seen["interfaces"]), tuple(seen["answers"]))
        for seen in json.loads(done.stdout)
    ]


def _serve(library: str) -> None:
    ctypes.CDLL(library)
    layouts = [Layout(one["batch"], tuple(one["settings"])) for one in json.load(sys.stdin)]
    json.dump([forked(functools.partial(_host, library, one)) for one in layouts], sys.stdout)


def _host(library: str, one: Layout) -> dict[str, Any]:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace")
    subprocess.run(["ip", "-batch", "-"], input=one.batch, text=True, capture_output=True, check=True)
    interfaces = read_interfaces()
    answers = [forked(functools.partial(_ask, library, env)) for env in one.settings]
    return {"interfaces": interfaces, "answers": answers}


def _ask(library: str, env: dict[str, str]) -> dict[str, Any]:
    os.environ.update(env, NCCL_DEBUG="INFO")
    log = os.memfd_create("nccl")
    os.dup2(log, 1)
    answer = call(library)
    ctypes.CDLL(None).fflush(None)
    os.lseek(log, 0, os.SEEK_SET)
    output = os.read(log, 1 << 20) + spelt(answer)
    return understand(output)


def forked(work: Callable[[], T]) -> T:
    """The result of ``work``, done in a child process that takes its namespace and its threads with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("a trial ended early; see above")
    result: T = json.loads(text)
    return result


class _Sockaddr(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = (
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Sockaddr)),
    ("netmask", ctypes.POINTER(_Sockaddr)),
)


def read_interfaces() -> dict[str, Any]:
    """The links and addresses of this namespace, read by getifaddrs(3) as NCCL does; JSON of snapshot.Interfaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    flags: dict[str, int] = {}
    addresses = []
    entry = first
    while entry:
        one = entry.contents
        name = one.name.decode()
        flags.setdefault(name.partition(":")[0], one.flags)
        if one.address and one.address.contents.family in (socket.AF_INET, socket.AF_INET6):
            address = bytes(one.address.contents.data)
            is_inet = one.address.contents.family == socket.AF_INET
            scope = 0 if is_inet else int.from_bytes(address[22:26], sys.byteorder)
            mask = _text(one.netmask.contents) if one.netmask else None
            family = "inet" if is_inet else "inet6"
            addresses.append(
                {
                    "interface": name,
                    "family": family,
                    "address": _text(one.address.contents),
                    "netmask": mask,
                    "scope_id": scope,
                }
            )
        entry = one.next
    libc.freeifaddrs(first)
    links = [
        {
            "name": name,
            "index": socket.if_nametoindex(name),
            "flags": [word for bit, word in FLAGS.items() if value & bit],
            "mtu": 1500,
            "speed_mbps": None,
            "kind": "virtual",
        }
        for name, value in flags.items()
    ]
    return {"links": links, "addresses": addresses}


def _text(address: _Sockaddr) -> str:
    data = bytes(address.data)
    if address.family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[2:6])
    return socket.inet_ntop(socket.AF_INET6, data[6:22])


if __name__ == "__main__":
    _serve(sys.argv[1])
