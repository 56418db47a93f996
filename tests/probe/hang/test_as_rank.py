"""Ranks that want root to open, write or call something for them: it reaches what they reach themselves, no more."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.collect.hang.hang import pack
from nccl_doctor.probe import procs
from nccl_doctor.probe.hang import recorder, watch
from nccl_doctor.probe.hang.recorder import RankFiles, ask
from nccl_doctor.probe.tools import Unavailable
from tests.lab import kernel
from tests.lab.maps import MAPS_A_LIE
from tests.patience import LONG_S
from tests.probe.hang.test_recorder import row, soon

USER = 12345
SECRET = b"root:$6$secret"
DUMPS = "TORCH_FR_DUMP_TEMP_FILE"
PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
SERVER = "TORCH_WORKER_SERVER_SOCKET"


@pytest.fixture
def folder() -> Iterator[Path]:
    """The rank's own, with a folder of root's beside it; pytest's are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="as-rank-"))
    place.chmod(0o755)
    for name, mode, owner in (("rank", 0o755, USER), ("root", 0o700, 0)):
        (place / name).mkdir()
        (place / name).chmod(mode)
        os.chown(place / name, owner, owner)
    yield place
    shutil.rmtree(place)


@contextmanager
def rank(uid: int = USER, root: Path | None = None, first: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A process of that user, in a mount namespace and root of its own where one is given; it rests behind ``first``."""
    ready, say = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            if root is not None:
                kernel.unshare(kernel.CLONE_NEWNS)
                os.chroot(root)
            os.chdir("/")
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            first()
            os.write(say, b"ready")
            while True:
                signal.pause()
        os._exit(1)
    os.close(say)
    try:
        assert os.read(ready, 5) == b"ready"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def dumped(pid: int, prefix: str) -> bytes | None:
    found = recorder.dumped(row(pid=pid, told={DUMPS: prefix}), 3600, soon())
    return None if found is None else base64.b64decode(found["data"])


def write(path: Path, data: bytes, mode: int = 0o600, owner: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def test_its_own_dump_is_read(folder: Path) -> None:
    write(folder / "rank/trace_0", b"dump", owner=USER)
    with rank() as pid:
        assert dumped(pid, f"{folder}/rank/trace_") == b"dump"


def test_a_dump_that_is_a_link_to_a_file_of_roots_is_not_read(folder: Path) -> None:
    write(folder / "root/trace_0", SECRET)
    (folder / "rank/trace_0").symlink_to(folder / "root/trace_0")
    (folder / "rank/below").symlink_to(folder / "root")
    with rank() as pid:
        assert dumped(pid, f"{folder}/rank/trace_") is None
        assert dumped(pid, f"{folder}/rank/below/trace_") is None
        assert dumped(pid, f"{folder}/root/trace_") is None


def test_a_container_is_not_left_by_a_link(folder: Path) -> None:
    """Its root is root here too, and has no privilege there."""
    inside = folder / "rank"
    write(folder / "root/trace_0", SECRET)
    (inside / "tmp").mkdir()
    (inside / "tmp/out").symlink_to(folder / "root")
    write(inside / "tmp/own_0", b"dump")
    write(inside / "tmp/others_0", SECRET, owner=USER)
    with rank(uid=0, root=inside) as pid:
        assert dumped(pid, "/tmp/own_") == b"dump"
        assert dumped(pid, "/tmp/out/trace_") is None
        assert dumped(pid, "/tmp/others_") is None


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFIFO])
def test_what_is_no_file_is_not_even_opened(folder: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open some devices does harm at once (/dev/watchdog), and a pipe's writer would go on."""
    os.mknod(folder / "rank/trace_0", 0o666 | kind, os.makedev(1, 3))
    opens, calls = os.open, []

    def recorded(name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        calls.append((str(name), flags & os.O_PATH))
        return opens(name, flags, *args, **kwargs)

    def open_it(files: RankFiles) -> bytes:
        calls.clear()
        with suppress(OSError):
            files.open(f"{folder}/rank/trace_0", stat.S_IFREG, os.O_RDONLY)
        return repr(calls).encode()

    monkeypatch.setattr(os, "open", recorded)
    with rank() as pid:
        told = ask(pid, row(pid=pid)["started"], open_it, soon(), 1000)
    assert eval(told) == [(f"{folder}/rank/trace_0".lstrip("/"), os.O_PATH)]


def swap_before_open(monkeypatch: pytest.MonkeyPatch, path: Path, target: Path) -> None:
    """What a look sees at that path is at the next open a link."""
    opens = os.open

    def swapped(name: Any, *args: Any, **kwargs: Any) -> int:
        if str(name).endswith(path.name) and not path.is_symlink():
            path.unlink()
            path.symlink_to(target)
        return opens(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", swapped)


def test_a_pipe_that_becomes_a_link_is_not_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = write(folder / "root/canary", b"as it was")
    pipe = folder / "rank/p0.pipe"
    os.mkfifo(pipe, 0o666)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.chown(folder / "rank", 0, 0)  # the swap is done with root's rights, the rest with the rank's
    with rank() as pid:
        swap_before_open(monkeypatch, pipe, canary)
        assert not recorder.ask_for_dump(row(pid=pid, told={PIPES: f"{folder}/rank/p"}), soon())
    os.close(reader)
    assert canary.read_bytes() == b"as it was"


def test_a_pipe_of_roots_is_not_written_to(folder: Path) -> None:
    os.mkfifo(folder / "root/p0.pipe", 0o600)
    (folder / "rank/below").symlink_to(folder / "root")
    reader = os.open(folder / "root/p0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    with rank() as pid:
        assert not recorder.ask_for_dump(row(pid=pid, told={PIPES: f"{folder}/rank/below/p"}), soon())
    assert os.read(reader, 10) == b""
    os.close(reader)


class Service:
    """Something of root's that serves a socket, and what it was told."""

    def __init__(self, path: Path) -> None:
        self.heard: list[bytes] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._socket.accept()
            with client:
                client.settimeout(LONG_S)
                self.heard.append(client.recv(1000))

    def said(self, path: Path) -> list[bytes]:
        """All that came before this question."""
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
            last.sendall(b"last")
            last.recv(1)  # it was read when this ends
        return self.heard[:-1]


@pytest.mark.parametrize("link", ["itself", "folder"])
def test_a_socket_that_became_another_service_s_is_not_spoken_to(folder: Path, link: str) -> None:
    (folder / "service").mkdir()
    real = folder / "service/ws0"
    service = Service(real)
    mine = folder / "rank/place/ws0"

    def listen() -> None:
        mine.parent.mkdir()
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(mine))
        server.listen()
        server.detach()
        if link == "itself":
            mine.unlink()
            mine.symlink_to(real)
        else:
            mine.parent.rename(folder / "rank/away")
            mine.parent.symlink_to(real.parent)

    with rank(first=listen) as pid, pytest.raises(Unavailable, match="did not return"):
        recorder.live(row(pid=pid, told={SERVER: f"{folder}/rank/place/ws"}), soon())
    assert [one for one in service.said(real) if one] == []


def test_the_child_is_the_rank_without_any_capability_and_can_load_nothing(folder: Path) -> None:
    def look(_files: RankFiles) -> bytes:
        with Path("/proc/thread-self/status").open() as status:
            told = [line.split() for line in status if line.startswith(("Uid:", "Gid:", "Cap"))]
        try:
            import this  # noqa: F401
        except (ImportError, ImportWarning):
            return repr(told).encode()
        return b"loaded"

    with rank() as pid:
        said = ask(pid, row(pid=pid)["started"], look, soon(), 10_000)
    told = {name: values for name, *values in eval(said)}
    assert told["Uid:"] == told["Gid:"] == [str(USER)] * 4
    assert {int(told[name][0], 16) for name in ("CapEff:", "CapPrm:", "CapInh:", "CapAmb:")} == {0}


def test_a_process_that_is_another_by_now_is_left_alone() -> None:
    with rank() as pid, pytest.raises(Unavailable, match="has ended"):
        ask(pid, row(pid=pid)["started"] + 1, lambda _files: b"", soon(), 1)


def test_what_does_not_end_or_says_too_much_is_ended() -> None:
    with rank() as pid:
        started = row(pid=pid)["started"]

        def waits(_files: RankFiles) -> bytes:
            signal.pause()
            return b""

        with pytest.raises(Unavailable, match="in time"):
            ask(pid, started, waits, 0.0, 1)
        with pytest.raises(Unavailable, match="more than 1 MiB"):
            ask(pid, started, lambda _files: bytes(2 << 20), soon(), 1 << 20)


PY_SPY = "import os; os.write(1, b'x'); import signal; signal.pause()"


def python_rank(uid: int, root: Path | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """A Python process of that user, in a root and in mount and PID namespaces of its own where one is given."""
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", sys.executable, "-c", PY_SPY]
    if root is not None:
        inside = f"mount --rbind / {root} && mount -t proc proc {root}/proc && exec chroot {root} {shlex.join(argv)}"
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    pid = process.pid
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(below[0])
    return process, pid


def stack(pid: int) -> Any:
    spy = watch.Spy()
    spy.install(pack(os.uname().machine))
    started = procs.read_proc(pid)
    assert started is not None
    return spy.dump({(pid, started.started): "S"}, "read", soon())[pid]


@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("uid", [USER, 0])
def test_stacks_are_read_with_the_ranks_rights_in_its_root(folder: Path, uid: int, *, contained: bool) -> None:
    (folder / "all").mkdir()
    process, pid = python_rank(uid, folder / "all" if contained else None)
    try:
        threads = stack(pid)
        assert isinstance(threads, list), threads
        assert [frame["function"] for frame in threads[0]["frames"]] == ["<module>"]
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_root_opens_no_file_that_a_rank_has_mapped_by_name(folder: Path) -> None:
    """py-spy opens by name; a link of the name leads to a FIFO of root's, whose reader would see it opened."""
    os.mkfifo(folder / "root/pipe", 0o600)
    argv = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-c", MAPS_A_LIE]
    with subprocess.Popen([*argv, folder / "rank", folder / "root/pipe"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        opened: list[int] = []
        # open(2) of a FIFO for writing returns once somebody opens it for reading
        writer = threading.Thread(target=lambda: opened.append(os.open(folder / "root/pipe", os.O_WRONLY)), daemon=True)
        writer.start()
        stack(process.pid)
        process.kill()
    assert opened == []
    os.close(os.open(folder / "root/pipe", os.O_RDONLY | os.O_NONBLOCK))
    writer.join()
    os.close(opened[0])
