"""Process tables of made-up hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

from nccl_doctor.probe.procs import Proc, ProcessTable

INIT = "/sbin/init"
RUN = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


@dataclass
class Fake:
    """A process of a made-up host."""

    pid: int
    ppid: int
    line: str
    environ: dict[str, str] = field(default_factory=dict)
    uid: int = 1000
    started: int = 5000
    group: int = 0
    session: int = 9
    name: str = ""
    executable: str = ""
    terminal: bool = False
    state: str = "S"
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str | None] = field(default_factory=dict)
    opened: tuple[str, ...] = ()


class FakeTable(ProcessTable):
    """A host with these processes and systemd as pid 1."""

    def __init__(self, *fakes: Fake) -> None:
        everybody = (Fake(1, 0, INIT, uid=0, session=1, name="systemd"), *fakes)
        self.procs = {
            one.pid: Proc(
                one.pid,
                one.name or "python",
                one.state,
                one.ppid,
                one.group or one.pid,
                one.session,
                one.terminal,
                False,
                one.started,
            )
            for one in everybody
        }
        self._children = {}
        for one in everybody:
            self._children.setdefault(one.ppid, []).append(one.pid)
        self._argv = {one.pid: tuple(one.line.split()) for one in everybody}
        self._environ = {one.pid: one.environ for one in everybody}
        self._uids = {one.pid: one.uid for one in everybody}
        self._files = {one.pid: one.files for one in everybody}
        self._links = {one.pid: one.links for one in everybody}
        self._opened = {one.pid: list(one.opened) for one in everybody}
        self._executables = {one.pid: one.executable or one.line.split()[0] for one in everybody}

    def executable(self, pid: int) -> str:
        return self._executables[pid]

    def text(self, pid: int, name: str) -> str:
        return self._files.get(pid, {}).get(name, "")

    def opened(self, pid: int) -> list[str]:
        return self._opened[pid]

    def link(self, pid: int, name: str) -> str | None:
        return self._links.get(pid, {}).get(name, name)


def rank(pid: int, ppid: int, number: int, **change: str) -> Fake:
    """A rank as torchrun starts it."""
    return Fake(pid, ppid, "python -u train.py", {**RUN, "LOCAL_RANK": str(number), **change})
