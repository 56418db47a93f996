"""What is seen of a real process: its state, its stack, its connections, without a trace on it."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.collect.hang.hang import own_program, pack
from nccl_doctor.probe import procs, tools
from nccl_doctor.probe.facts.hardware import parse_killed
from nccl_doctor.probe.hang import flows, ranks, watch
from nccl_doctor.probe.procs import ProcessTable
from nccl_doctor.probe.progress import look
from tests.patience import LONG_S
from tests.ras_server import Service, serving

STRANGER = 12345

SLEEPER = """\
import os, socket, sys, time
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
one.setblocking(False)
one.send(bytes(1 << 22))
while not sum(os.times()[:2]):  # a start may be too short for the kernel's tick
    pass
def wait():
    print(flush=True)
    time.sleep(1000)
wait()
"""


@pytest.fixture(scope="module")
def sleeper() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", SLEEPER, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process, server.accept()[0]:
            assert process.stdout is not None
            process.stdout.readline()
            # it has said so before it does so
            while (told := procs.read_proc(process.pid)) is not None and told.state != "S":
                time.sleep(0.01)
            yield process.pid
            process.kill()


CROWD = """\
import threading, time
for _ in range(20):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def wait(deeper):
    if deeper:
        wait(deeper - 1)
    print(flush=True)
    time.sleep(1000)
def main():
    wait(30)
main()
"""


def started(pid: int) -> int:
    found = procs.read_proc(pid)
    assert found is not None
    return found.started


def seen(spy: watch.Spy, pid: int, letter: str = "S", mode: str = "read") -> list[str]:
    threads = spy.dump({(pid, started(pid)): letter}, mode, time.monotonic() + 10)[pid]
    assert isinstance(threads, list), threads
    return [frame["function"] for frame in threads[0]["frames"]]


def test_a_sleeping_process(sleeper: int) -> None:
    told = look(sleeper, started(sleeper), ProcessTable())
    assert told is not None
    assert (told["state"], told["threads"], told["workers"]) == ("S", 1, [])
    assert told["cpu_s"] > 0
    assert told["wanted_s"][str(sleeper)] > 0
    assert told["io_bytes"] > 1000
    again = look(sleeper, started(sleeper), ProcessTable())
    assert again is not None
    assert again["switches"] == told["switches"]
    assert look(sleeper, started(sleeper) + 1, ProcessTable()) is None


def test_its_connection_waits_for_a_reader(sleeper: int) -> None:
    before: list[dict[str, Any]] = []
    while (now := flows.by_rank([sleeper])[sleeper]) != before:  # until as much is on its way as there is room for
        before = now
        time.sleep(0.2)
    (flow,) = now
    assert flow["unsent"] > 0
    assert flow["acked"] > 0
    assert (flow["local"][0], flow["retransmits"]) == ("127.0.0.1", 0)
    told = flows.table_of(sleeper)
    assert any(row["unsent"] == flow["unsent"] and row["remote"] == flow["remote"] for row in told.values())


@pytest.fixture
def sent() -> watch.Spy:
    """The one that is sent along."""
    spy = watch.Spy()
    spy.install(pack(os.uname().machine))
    return spy


def test_stacks_by_the_one_that_is_there_and_by_the_one_sent_along(
    sleeper: int, sent: watch.Spy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = own_program()
    assert program is not None
    shutil.copy(program, tmp_path / "py-spy")
    monkeypatch.setenv("PATH", str(tmp_path))
    spy = watch.Spy()
    assert spy.find()
    assert spy.program is not None
    assert os.pread(spy.program, 1 << 24, 0) == program.read_bytes()
    assert seen(spy, sleeper)[:2] == ["wait", "<module>"]
    assert seen(sent, sleeper)[:2] == ["wait", "<module>"]
    assert seen(sent, sleeper, mode="pause")[:2] == ["wait", "<module>"]
    assert "clock_nanosleep" in " ".join(seen(sent, sleeper, mode="native")[:3])


def test_each_sample_uses_the_same_copy_of_py_spy(
    sleeper: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 samples leave as many descriptors, and as much memory shared, as the first."""
    program = own_program()
    assert program is not None
    shutil.copy(program, tmp_path / "py-spy")
    monkeypatch.setenv("PATH", str(tmp_path))
    spy = watch.Spy()
    assert spy.find()
    spy.install(pack(os.uname().machine))
    opened = sorted(Path("/proc/self/fd").iterdir())
    for _sample in range(500):
        assert spy.find()
    assert seen(spy, sleeper)[:2] == ["wait", "<module>"]
    assert sorted(Path("/proc/self/fd").iterdir()) == opened
    os.close(spy.program or 0)


def test_a_host_without_room_for_a_process_loses_no_descriptor(
    sleeper: int, sent: watch.Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    opened = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(os, "fork", full)
    told = sent.dump({(sleeper, started(sleeper)): "S"}, "read", time.monotonic() + 5.0)[sleeper]
    assert "temporarily unavailable" in told["$unknown"]
    assert sorted(Path("/proc/self/fd").iterdir()) == opened


def test_what_a_rank_has_under_that_name_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its program as it tells it, in its folder, and on its PATH."""
    for name in ("beside", "folder", "path"):
        (tmp_path / name).mkdir()
        planted = tmp_path / name / "py-spy"
        planted.write_text(f"#!/bin/sh\necho > {tmp_path}/canary\n")
        planted.chmod(0o755)
    monkeypatch.setattr(tools, "SYSTEM", ())
    monkeypatch.setenv("PATH", "")
    with subprocess.Popen(
        [str(tmp_path / "beside/python3"), "-c", "import time; time.sleep(1000)"],
        executable=sys.executable,
        cwd=tmp_path / "folder",
        env={"PATH": f"{tmp_path}/path"},
    ) as rank:
        try:
            spy = watch.Spy()
            assert not spy.find()
            told = spy.dump({(rank.pid, started(rank.pid)): "S"}, "read", time.monotonic() + LONG_S)[rank.pid]
        finally:
            rank.kill()
    assert "py-spy is not installed" in told["$unknown"]
    assert not (tmp_path / "canary").exists()


def test_a_stopped_process_stays_as_it_is(sleeper: int, sent: watch.Spy) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    try:
        for mode in watch.MODES:
            assert seen(sent, sleeper, "T", mode)[:2] == ["wait", "<module>"]
            assert Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    finally:
        os.kill(sleeper, signal.SIGCONT)


def test_the_main_thread_is_told_first_and_deepest(sent: watch.Spy) -> None:
    with subprocess.Popen([sys.executable, "-c", CROWD], stdout=subprocess.PIPE) as crowd:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        stack = seen(sent, crowd.pid)
        crowd.kill()
    assert stack[-2:] == ["main", "<module>"]


def test_why_there_is_no_stack(sleeper: int) -> None:
    spy = watch.Spy()

    def reason(allowed_s: float = 5.0) -> str:
        found = spy.dump({(sleeper, started(sleeper)): "S"}, "read", time.monotonic() + allowed_s)[sleeper]
        assert isinstance(found, dict), found
        return str(found["$unknown"])

    assert "not installed" in reason()
    spy.install({"missing": "none came"})
    assert "none came" in reason()
    spy.program = os.open(shutil.which("true") or "", os.O_RDONLY)
    assert "py-spy" in reason()
    os.close(spy.program)
    spy.program = watch.write_memory_file(LOOPS)
    assert "in time" in reason(0.3)


LOOPS = (
    b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    + struct.pack(
        "<2HI3QI6H", 2, (os.uname().machine == "x86_64" and 62) or 183, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    + struct.pack("<2I6Q", 1, 5, 0, 0x400000, 0x400000, 0x80, 0x80, 0x1000)
    + (b"\xeb\xfe".ljust(8, b"\0") if os.uname().machine == "x86_64" else b"\0\0\0\x14\0\0\0\0")
)
"""The smallest program that never ends: a jump to itself."""


def test_the_kernels_kills() -> None:
    records = [
        "4,1,5000000,-;Out of memory: Killed process 77 (python) total-vm:1kB",
        "4,1,90000000,-;Memory cgroup out of memory: Killed process 78 (pt_main_thread) total-vm:1kB",
        "4,1,x,-;Out of memory: Killed process 79 (python)",
        "4,1,90000000,-;nothing",
    ]
    assert parse_killed(records, 100, 50) == [{"pid": 78, "name": "pt_main_thread", "age_s": 10.0}]


def loaded_nccl(pid: int) -> dict[str, str | None] | None:
    process = procs.read_proc(pid)
    assert process is not None
    return ranks.NcclVersions(time.monotonic() + LONG_S).loaded(pid, process.started)


def test_which_nccl_a_process_has_loaded() -> None:
    path = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    program = f"import ctypes, time; ctypes.CDLL({str(path)!r}); print(flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert loaded_nccl(process.pid) == {"path": str(path), "version": "2.28.9"}
        process.kill()
    assert loaded_nccl(os.getpid()) is None


@pytest.mark.parametrize(("owner", "version"), [(STRANGER, None), (0, "2.28.9")])
def test_root_follows_a_stranger_s_library_with_that_ones_rights(owner: int, version: str | None) -> None:
    """Its path may have become a link to anywhere since it was mapped."""
    with tempfile.TemporaryDirectory(prefix="nccl-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "root").mkdir(mode=0o700)
        (place / "root/nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
        os.chown(place / "root", STRANGER + 1, STRANGER + 1)  # a home, where root itself may have an environment
        library = place / "mine/nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"x" * 4096)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setresgid(owner, owner, owner)
                os.setresuid(owner, owner, owner)
                with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
                    os.write(writing, b"x")
                    time.sleep(LONG_S)
            finally:
                os._exit(1)
        try:
            os.read(reading, 1)
            shutil.rmtree(place / "mine")  # the kernel goes on to tell its path
            (place / "mine").symlink_to(place / "root")
            assert loaded_nccl(child) == {"path": str(library), "version": version}
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def has_loaded(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(ranks.NcclVersions, "loaded", lambda *_: {"path": "x", "version": version})


def test_an_old_nccl_is_asked_only_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    looker = watch.Watch()
    looker._ranks = {7: {"started": 1, "told": {"NCCL_RAS_ADDR": "10.255.255.1:1"}}}
    has_loaded(monkeypatch, "2.26.2")
    told = looker.ask_ras({"pids": [7], "force": False})
    assert "2.26.2" in told["refused"]
    assert "--force" in told["refused"]
    told = looker.ask_ras({"pids": [7], "force": True})
    assert told["$unknown"] == "no rank listens on NCCL's RAS port 1 here"  # what it names was not dialled
    looker._ranks = {7: {"started": 1, "told": {"NCCL_RAS_ENABLE": "0"}}}
    assert "NCCL_RAS_ENABLE=0" in looker.ask_ras({"pids": [7], "force": True})["$unknown"]


def test_two_jobs_on_one_port_are_both_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    has_loaded(monkeypatch, "2.28.9")
    texts = [f"NCCL version 2.28.{number} compiled with CUDA 13.0" for number in range(2)]
    with serving(*(Service(text, '{"nccl_version": "2.28.9", "communicators": []}') for text in texts)) as port:
        looker = watch.Watch()
        own = os.getpid()
        looker._ranks = {own: {"started": 1, "told": {"NCCL_RAS_ADDR": f"somewhere.invalid:{port}"}}}
        told = looker.ask_ras({"pids": [own], "force": False})
    assert {one["form"] for one in told["reports"]} == {"json", "text"}
    assert set(texts) < {one["text"] for one in told["reports"]}


@pytest.mark.parametrize(
    ("version", "safe"), [("2.27.3", True), ("2.28.9", True), ("2.27.2", False), ("2.24.3", False), ("unknown", False)]
)
def test_versions_that_may_be_asked(version: str, *, safe: bool) -> None:
    assert watch._safe(version) is safe
