from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

import nccl_doctor
from nccl_doctor.files import write_atomically


def test_a_file_is_replaced_whole_and_a_link_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for text in (b"first", b"second"):
        write_atomically(tmp_path / "link", text, private=True)
    assert (tmp_path / "file").read_bytes() == b"second"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_planted_link_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    folder, victim = tmp_path / "shared", tmp_path / "victim"
    folder.mkdir()
    folder.chmod(0o1777)
    victim.write_text("mine")
    (folder / "report.json").symlink_to(victim)
    os.chown(folder / "report.json", 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match="another user made"):
        write_atomically(folder / "report.json", b"x")
    assert victim.read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_the_drafts_name_can_not_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former name, of the process, is planted as a link: nobody writes through it."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".report.{os.getpid()}").symlink_to(victim)
    drafts: list[int] = []
    replace = Path.replace

    def seen(draft: Path, place: Path) -> Path:
        drafts.append(draft.lstat().st_mode & 0o777)
        return replace(draft, place)

    monkeypatch.setattr(Path, "replace", seen)
    write_atomically(tmp_path / "report", b"x", private=True)
    assert (victim.read_text(), (tmp_path / "report").read_text(), drafts) == ("mine", "x", [0o600])


def test_mode_and_owner_of_what_was_there_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    os.chown(path, 12345, 54321)
    write_atomically(path, b"new")
    seen = path.stat()
    assert (seen.st_mode & 0o777, seen.st_uid, seen.st_gid, path.read_text()) == (0o640, 12345, 54321, "new")


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, b"through")
    reader.join(10)
    assert read == ["through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("place", ["no/file", "."])
def test_a_place_that_can_not_be_written_is_an_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(OSError, match=r"No such file or directory|Is a directory"):
        write_atomically(tmp_path / place, b"x")


WRITES = re.compile(
    r"\.write_(?:text|bytes)\(|mk[sd]temp\(|NamedTemporaryFile\(|TemporaryDirectory\(|open\([^)\n]*[\"'][wax]b?[\"']"
)
OTHERS = {"transport/openssh.py": "a log, where /proc can not name it", "probe/children.py": "a folder with a keeper"}


def test_files_are_written_in_one_place() -> None:
    package = Path(nccl_doctor.__file__).parent
    writers = {str(path.relative_to(package)) for path in package.rglob("*.py") if WRITES.search(path.read_text())}
    assert writers == {"files.py", *OTHERS}
