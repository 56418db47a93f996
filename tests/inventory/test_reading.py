from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nccl_doctor.errors import HostsFileError
from nccl_doctor.inventory import sources
from nccl_doctor.inventory.sources import MAX_BYTES, decode, read_text
from tests.patience import LONG_S, joined


def refusal(path: Path | str) -> str:
    with pytest.raises(HostsFileError) as caught:
        read_text(str(path))
    return str(caught.value).replace(str(path), "F")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", 'F: empty; a hosts file has at least "hosts:" and below it "- node1"'),
        (b"\xef\xbb\xbf \n", 'F: empty; a hosts file has at least "hosts:" and below it "- node1"'),
        (b"hosts:\n- a\0", "F:2: a NUL byte: not a UTF-8 text file"),
        ("hosts: [a]".encode("utf-16"), "F:1: a NUL byte: not a UTF-8 text file"),
        (b"hosts:\n- caf\xe9\n", "F:2: the byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"a" * (MAX_BYTES + 1), "F: bigger than 1 MiB, too big for a hosts file"),
    ],
)
def test_refuses_what_is_no_text(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(data)
    assert refusal(path) == problem


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "hosts.yaml") == "F: no such file"
    assert refusal("node[1-4]") == "F: no such file; to name hosts directly, use -w: nccl-doctor check -w node1"
    assert refusal(tmp_path) == "F: is a directory; a hosts file is a plain file"
    assert refusal("/dev/zero") == "F: is a device or socket; a hosts file is a plain file"
    assert refusal("a\0b") == "F: can't be read: embedded null byte"


def test_reads_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def write() -> None:
        os.write(writer, b"hosts: [a]")
        os.close(writer)

    try:
        thread = threading.Thread(target=write)
        thread.start()
        assert read_text(f"/dev/fd/{reader}") == "hosts: [a]"
        joined(thread)
    finally:
        os.close(reader)


def test_standard_input_is_a_hosts_file_also_where_it_is_a_socket() -> None:
    """Behind ssh it is one, which /dev/stdin can't open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hosts: [gpu1, gpu2]")
        ours.shutdown(socket.SHUT_WR)
        command = [str(Path(sys.executable).with_name("nccl-doctor")), "hosts", "-"]
        done = subprocess.run(
            command, stdin=theirs.fileno(), capture_output=True, text=True, check=False, timeout=LONG_S
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpu2" in done.stdout


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIPE_SECONDS", 0.05)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert refusal(fifo) == "F: nothing arrived through the pipe within 0.05 s"
    writer = os.open(fifo, os.O_RDWR)
    try:
        assert refusal(fifo) == "F: nothing arrived through the pipe within 0.05 s"
        os.write(writer, b"hosts:\n")
        assert refusal(fifo) == "F: the pipe was not closed within 0.05 s"
    finally:
        os.close(writer)


def test_a_byte_order_mark_is_no_text() -> None:
    assert decode("\ufeffhosts: [é]".encode(), "f") == "hosts: [é]"
