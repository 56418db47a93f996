"""Processes as /proc/PID tells them in one short read each.

The start in clock ticks since boot, with the PID, is what a process is known by: as a time of day it would move
when the clock is set.

Which processes hold a socket: the links of /proc/PID/fd, as far as we may read them.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import Iterator, NamedTuple

MOST_FILES = 1 << 16
"""Descriptors of one process that are looked at."""


def pids_by_inode(inodes: set[int]) -> dict[int, list[int]]:
    """All processes that hold each socket, as far as we may look; several where a socket was inherited.

    All of them must go before the port is free.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    found: dict[int, list[int]] = {}
    for pid, _, target in open_files() if wanted else ():
        inode = wanted.get(target)
        if inode is not None and pid not in found.setdefault(inode, []):
            found[inode].append(pid)
    return found


def open_files(pids: set[int] | None = None) -> Iterator[tuple[int, str, str]]:
    """(pid, link, target) of every /proc/PID/fd link that we may read, of all processes or of these."""
    everybody = (int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if pids is None else pids
    for pid in sorted(everybody):
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                links = [entry.path for entry in islice(entries, MOST_FILES)]
        except OSError:  # gone, or another user's
            continue
        for link in links:
            try:
                yield pid, link, os.readlink(link)
            except OSError:  # closed meanwhile
                continue


PF_KTHREAD = 0x00200000
"""include/linux/sched.h."""
STARTED = 19
"""Where starttime, field 22 of /proc/PID/stat (proc_pid_stat(5)), stands behind the command's parenthesis."""
COMMAND_LIMIT = 500
TEXT_LIMIT = 1 << 18
"""Bytes of one file in /proc/PID. A process may declare as much of its memory its variables as it likes (PR_SET_MM_MAP
of prctl(2) needs no right); a job's own seldom have a tenth of this."""
KEPT_LIMIT = 1 << 25
"""Bytes of variables that a table keeps; beyond, it forgets them all and reads again what is asked again."""


class Proc(NamedTuple):
    """A process.

    Attributes:
        name: the kernel's, at most 15 characters; a program can change its own.
        state: one letter; "Z" is a zombie.
        terminal: whether it has a controlling terminal.
        kernel: whether it is a kernel thread.
        started: clock ticks since boot.
    """

    pid: int
    name: str
    state: str
    ppid: int
    group: int
    session: int
    terminal: bool
    kernel: bool
    started: int


def read_proc(pid: int) -> Proc | None:
    """A process; None where it is gone."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(file, 4096)
    except OSError:  # it ended meanwhile
        return None
    finally:
        os.close(file)
    # the name in parentheses may itself hold spaces and parentheses
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    return Proc(
        pid=pid,
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        terminal=fields[4] != b"0",
        kernel=bool(int(fields[6]) & PF_KTHREAD),
        started=int(fields[STARTED]),
    )


class Table:
    """All processes at one moment, and what can be asked of each; every answer is read once.

    Attributes:
        procs: by PID.
    """

    def __init__(self) -> None:
        found = (read_proc(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
        self.procs: dict[int, Proc] = {proc.pid: proc for proc in found if proc is not None}
        self._children: dict[int, list[int]] = {}
        for proc in self.procs.values():
            self._children.setdefault(proc.ppid, []).append(proc.pid)
        self._argv: dict[int, tuple[str, ...]] = {}
        self._environ: dict[int, dict[str, str]] = {}
        self._environ_bytes = 0
        self._uids: dict[int, int] = {}

    def descendants(self, root: int) -> list[int]:
        """All below a process, parents before their children."""
        found: list[int] = []
        waiting = [root]
        while waiting:
            below = sorted(self._children.get(waiting.pop(0), []))
            found += below
            waiting += below
        return found

    def ancestors(self, pid: int) -> list[int]:
        """The parent, its parent and so on."""
        found: list[int] = []
        proc = self.procs.get(pid)
        while proc is not None and proc.ppid and proc.ppid not in found:
            found.append(proc.ppid)
            proc = self.procs.get(proc.ppid)
        return found

    def argv(self, pid: int) -> tuple[str, ...]:
        """The arguments; empty for a kernel thread or a zombie, and where they are hidden."""
        if pid not in self._argv:
            words = self.text(pid, "cmdline").rstrip("\0").split("\0")
            self._argv[pid] = tuple(words) if words != [""] else ()
        return self._argv[pid]

    def command(self, pid: int) -> str:
        """The command line, or the name in brackets, in at most COMMAND_LIMIT characters."""
        name = self.procs[pid].name if pid in self.procs else "?"
        line = " ".join(self.argv(pid)) or f"[{name}]"
        return line if len(line) <= COMMAND_LIMIT else line[: COMMAND_LIMIT - 1] + "…"

    def environ(self, pid: int) -> dict[str, str]:
        """The variables it was started with; empty where they are hidden, or longer than TEXT_LIMIT.

        A part of them would do harm: two runs whose difference stands behind its end would look like one.
        """
        if pid not in self._environ:
            data = _read(pid, "environ")
            text = data.decode(errors="replace") if len(data) < TEXT_LIMIT else ""
            self._environ_bytes += len(data)
            if self._environ_bytes > KEPT_LIMIT:
                self._environ.clear()
                self._environ_bytes = len(data)
            entries = (entry.partition("=") for entry in text.split("\0"))
            self._environ[pid] = {name: value for name, mark, value in entries if mark}
        return self._environ[pid]

    def uid(self, pid: int) -> int:
        """The real user; -1 for one that is gone.

        From the status file: the folder itself belongs to root where a program is not dumpable (proc(5)).
        """
        if pid not in self._uids:
            told = self.status(pid, "Uid")
            self._uids[pid] = int(told.split()[0]) if told else -1
        return self._uids[pid]

    def status(self, pid: int, name: str) -> str | None:
        """One value of its status file (proc_pid_status(5)); None for one that is gone."""
        lines = self.text(pid, "status").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(name + ":")), None)

    def executable(self, pid: int) -> str:
        """The base name of the program that runs; of the first argument where the link may not be read."""
        path = self.link(pid, "exe")
        if path is None:
            argv = self.argv(pid)
            path = argv[0].partition(" ")[0] if argv else ""
        return os.path.basename(path.replace(" (deleted)", "")) or (self.procs[pid].name if pid in self.procs else "")

    def text(self, pid: int, name: str) -> str:
        """One of the process's files in /proc, at most TEXT_LIMIT bytes; "" where it is gone or hidden."""
        return _read(pid, name).decode(errors="replace")

    def opened(self, pid: int) -> list[str]:
        """Where its descriptors lead, as far as we may look."""
        return [target for _, _, target in open_files({pid})]

    def link(self, pid: int, name: str) -> str | None:
        """Where one of its links in /proc leads, such as "cwd" or "ns/pid"; None where it is gone or hidden."""
        try:
            return os.readlink(f"/proc/{pid}/{name}")
        except OSError:
            return None


def _read(pid: int, name: str) -> bytes:
    """At most TEXT_LIMIT bytes of one of a process's files; b"" where it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(TEXT_LIMIT)
    except OSError:  # gone, or another user's
        return b""
