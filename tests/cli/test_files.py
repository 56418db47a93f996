from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nccl_doctor.cli.files import write_text
from nccl_doctor.errors import DoctorError


def test_a_file_is_replaced_whole_and_a_link_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "first", 0o600)
    write_text(tmp_path / "link", "second", 0o600)
    assert (tmp_path / "file").read_text() == "second"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert pipe.is_fifo()


def test_a_place_that_can_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="can't be written: No such file or directory"):
        write_text(tmp_path / "no" / "file", "x")
    with pytest.raises(DoctorError, match="can't be written: Is a directory"):
        write_text(tmp_path, "x")
