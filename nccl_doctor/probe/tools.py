"""Functions that run the host's programs, read files in /proc and /sys, and register collectors.

Programs are searched for by name in the user's PATH and in the system's directories. The arguments, working directory,
environment variables and root directory of an examined process are never used to find a program. As root, the probe
runs a program only if no other user can change or replace the program. Without root privileges, the probe runs the same
programs as the user's shell.

Some programs are run without a search, namely the Python interpreter from the hosts file (facts/software.py,
smoke/allreduce.py), the login shell (facts/software.py), and /bin/sh with rm and sleep (children.py). A copy of py-spy
that was sent by the controller runs from memory (hang/watch.py). Before the probe starts, the login shell runs the
Python interpreter and, if the hosts file names a container, the container runtime. On the host of a container, the
controller uses /bin/sh to run cat, df and readlink (collect/facts/host_facts.py).
"""

from __future__ import annotations

import os
import queue
import stat
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence, Set, TypeVar


class Unavailable(Exception):  # noqa: N818 - it is no error of ours
    """Error for a fact that can't be determined on this host.

    The error message is a phrase that can follow "unknown: ".
    """


def clock(_request: dict[str, Any]) -> float:
    return time.time()


def trace() -> str:
    import traceback  # 3 ms, and most hosts have none

    return traceback.format_exc()


COLLECTORS: Dict[str, Callable[..., object]] = {}
SLOW: Set[str] = set()
Collector = TypeVar("Collector", bound=Callable[..., object])


def fact(field: str, *, slow: bool = False) -> Callable[[Collector], Collector]:
    """Return a decorator that registers a collector for a field of ``snapshot.HostFacts``.

    ``slow`` means that the collector starts a program. Each parameter of a collector must be a key of ``arguments`` in
    probe/facts/__init__.py or have a default value.
    """

    def register(collector: Collector) -> Collector:
        COLLECTORS[field] = collector
        SLOW.update({field} if slow else ())
        return collector

    return register


MOST_FILE_BYTES = 1 << 23
"""Maximum number of bytes that are read from one file.

The limit is enough for 50,000 sockets in /proc/net/tcp. A limit is needed because any user can create a network
namespace with more than 50,000 sockets.
"""
FILE_PIECE = 1 << 16


ROOT = ""
"""Prefix that :func:`under` adds to paths. Tests set the prefix to the root directory of a simulated machine."""


def under(path: str) -> str:
    """Return the path at which a file of the examined machine can be opened."""
    return ROOT + path


@fact("port_range")
def port_range() -> dict[str, Any]:
    folder = under("/proc/sys/net/ipv4")
    text = read(f"{folder}/ip_local_port_range")
    if text is None:
        raise Unavailable(f"{folder}/ip_local_port_range can't be read")
    low, high = text.split()
    return {"low": int(low), "high": int(high), "reserved": read(f"{folder}/ip_local_reserved_ports") or ""}


def read(path: str) -> str | None:
    """Return the text of a file without surrounding whitespace, or None if the file can't be read.

    At most MOST_FILE_BYTES bytes are read.
    """
    data = bytearray()
    try:
        with open(path, "rb", buffering=0) as file:
            # in pieces: a sysctl answers a buffer of 4 MiB with ENOMEM (proc_sys_call_handler, fs/proc/proc_sysctl.c)
            while len(data) < MOST_FILE_BYTES and (piece := file.read(FILE_PIECE)):
                data += piece
    except OSError:
        return None
    return data.decode("utf-8", "surrogateescape").strip()


def encoded(name: str) -> str | bytes:
    """Return a host name as bytes if the name needs no IDNA encoding.

    For a name that is passed as bytes, Python does not import the IDNA codec, which would take 2 ms.

    Return any other host name as a string.
    """
    *labels, last = name.split(".")
    return name.encode() if name.isascii() and len(last) < 64 and all(0 < len(label) < 64 for label in labels) else name


WORKERS = 16  # concurrent look-ups: name servers drop queries of a client that sends too many


def side_by_side(look: Callable[[str], Any], names: list[str], deadline: float) -> dict[str, Any]:
    """Call ``look`` for each name in parallel. Return a dictionary of the results that arrived before the deadline.

    Calls that are unfinished at the deadline continue in the background.
    """
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
    results: dict[str, Any] = {}
    while len(results) < len(names):
        try:
            name, answer = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        results[name] = answer
    return results


PROGRAMS = {  # by name, with its purpose; no other program is run
    "nvidia-smi": "GPUs, their health, who uses them",
    "lspci": "which PCIe bridges redirect",
    "systemctl": "the state of the Fabric Manager",
    "nv-fabricmanager": "its version, where it does not run",
    "ldconfig": "where ld.so finds libnccl and libcuda",
    "ldd": "which of several libnccl torch's own library gets; a script that starts ld.so",
    "py-spy": "the stacks of ranks",
    "nft": "packet filters",
    **dict.fromkeys((f"{ip}tables{kind}" for ip in ("ip", "ip6") for kind in ("", "-legacy", "-nft")), "their kind"),
    **dict.fromkeys(
        (f"{ip}tables{kind}-save" for ip in ("ip", "ip6") for kind in ("", "-legacy", "-nft")), "packet filters"
    ),
    "ipset": "sets of addresses that rules name",
    "firewall-cmd": "firewalld's zones",
    "ufw": "ufw's rules",
    "cat": "which tables of x_tables there are, where root alone may read it",
    "sudo": "rules as root, where the login is not",
    "timeout": "the end of what runs under sudo",
    "true": "a trial of sudo",
}
SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MORE = ("/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
"""Directories that contain nvidia-smi on GKE and WSL but might not be in the PATH of a non-interactive shell."""
MOST_STEPS = 256
OTHERS = stat.S_IWGRP | stat.S_IWOTH


def output(argv: list[str], deadline: float, accept: Iterable[int] = (0,), env: Mapping[str, str] = os.environ) -> str:
    """Run one of PROGRAMS in the C locale and return its output.

    Raise Unavailable if the program fails or is not trusted. Raise FileNotFoundError if the program is missing.
    """
    allowed_s = max(0.1, deadline - time.monotonic())
    name, folders = argv[0], login_folders()
    program = find(name, [*folders, *SYSTEM, *MORE])
    if program is None:
        path_folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder[:1] == "/"]
        for path in _named(name, [*path_folders, *SYSTEM, *MORE]):
            place = weak_place(os.path.dirname(path)) or weak_place(path)
            raise Unavailable(f"{path} is not run as root: others can change {place}"[:300])
        raise FileNotFoundError(name)
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**env, "PATH": os.pathsep.join([*folders, *SYSTEM]), "LC_ALL": "C"},
            timeout=allowed_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} gave no answer in time") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode not in accept:
        words = " ".join((text + done.stderr.decode("utf-8", "replace")).split())[:300]
        raise Unavailable(f"{name} ended with {done.returncode}: {words}")
    return text


def login_folders() -> list[str]:
    """Return the directories in the user's PATH. For root, return only directories that no other user can change."""
    # an empty or relative one means the current directory
    named = [folder for folder in dict.fromkeys(os.environ.get("PATH", "").split(os.pathsep)) if folder[:1] == "/"]
    return [folder for folder in named if weak_place(folder) is None] if os.geteuid() == 0 else named


def find(name: str, folders: Sequence[str], *, for_root: bool = False) -> str | None:
    """Return the path of one of PROGRAMS in the given directories, or None if no matching program is safe to run."""
    if name not in PROGRAMS:
        raise ValueError(f"{name} is not a program of the list")
    strict = for_root or os.geteuid() == 0
    for path in _named(name, folders):
        if not strict or (weak_place(os.path.dirname(path)) is None and weak_place(path) is None):
            return path
    return None


def weak_place(path: str) -> str | None:
    """Return the first part of a path that users other than root can change, or None if only root can change the path.

    Symbolic links are followed step by step, and each directory on the way is checked. A directory that other users can
    write to is accepted only as a parent directory and only with the sticky bit, which prevents other users from
    replacing root's files.
    """
    here, names = "/", _parts(path)
    for _ in range(MOST_STEPS):
        try:
            status = os.lstat(here)
            target = os.readlink(here) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return here
        if status.st_uid != 0:  # in a user namespace every user without a number there is 65534, too
            return here
        if target is not None:
            names = [*_parts(target), *names]
            here = "/" if target.startswith("/") else os.path.dirname(here)
            continue
        if status.st_mode & OTHERS and not (names and status.st_mode & stat.S_ISVTX):
            return here
        if not names:
            return None
        name = names.pop(0)
        here = os.path.dirname(here) if name == ".." else os.path.join(here, name)
    return path


def _named(name: str, folders: Sequence[str]) -> list[str]:
    paths = (os.path.join(folder, name) for folder in folders)
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
