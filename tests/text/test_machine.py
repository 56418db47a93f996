from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import nccl_doctor
from nccl_doctor.text.machine import try_file, try_folder, write_atomically


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


def listed(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """All that a change would change."""
    return [
        (one.name, one.lstat().st_ino, one.lstat().st_mtime_ns, one.read_bytes() if one.is_file() else b"")
        for one in (folder, *sorted(folder.iterdir()))
    ]


@pytest.fixture
def somebody() -> Iterator[None]:
    """Not root for the length of a test."""
    os.seteuid(12345)
    yield
    os.seteuid(0)


def test_a_trial_makes_opens_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "dangling").symlink_to("new")
    os.mkfifo(tmp_path / "pipe")  # nobody reads: to open it would wait for ever
    before = listed(tmp_path)
    for name in ("kept", "link", "dangling", "pipe", "new"):
        try_file(tmp_path / name)
    try_folder(tmp_path / "a/b/c")
    try_folder(tmp_path)
    for device in ("/dev/null", "/dev/stdout", "/dev/fd/2", "/proc/self/fd/1"):
        try_file(Path(device))
    assert listed(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no/file", "No such file"),
        ("", "Is a directory"),
        ("file/x", "Not a directory"),
        ("x" * 300, "too long"),
        ("loop", "symbolic links"),
        ("socket", "Permission denied"),
        ("dangling", "No such file"),
    ],
)
def test_a_trial_tells_what_could_not_be_written(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("no/file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        before = listed(tmp_path)
        with pytest.raises(OSError, match=why):
            try_file(tmp_path / name)
        assert listed(tmp_path) == before


def test_a_trial_knows_an_open_end_that_only_reads() -> None:
    end, start = os.pipe()
    try:
        try_file(Path(f"/dev/fd/{start}"))
        with pytest.raises(OSError, match="reading alone"):
            try_file(Path(f"/dev/fd/{end}"))
    finally:
        os.close(end)
        os.close(start)
    with pytest.raises(OSError, match="Bad file descriptor"):
        try_file(Path("/dev/fd/999999"))


@pytest.mark.usefixtures("somebody")
def test_a_trial_by_somebody_who_may_not() -> None:
    for place in (Path("/x"), Path("/etc/passwd"), Path("/root/x")):
        with pytest.raises(OSError, match="Permission denied"):
            try_file(place)
    with pytest.raises(OSError, match="Permission denied"):
        try_folder(Path("/etc/x/y"))


def test_a_trial_by_somebody_whose_file_it_is_not(tmp_path: Path, somebody: None) -> None:
    """In a folder where all may write, as /tmp: what is in its place could not be given to its owner."""
    os.seteuid(0)
    for folder in tmp_path.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)  # to pass through: other tests see these, too
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text("")
    os.seteuid(12345)
    try_file(tmp_path / "other")
    with pytest.raises(OSError, match="not permitted"):
        try_file(tmp_path / "file")


def test_what_is_open_already_is_written_to_as_it_is(tmp_path: Path) -> None:
    """`>> all.log` keeps what was there: the name of a stream is not opened anew, or replaced."""
    with (tmp_path / "all.log").open("ab") as stream:
        stream.write(b"before\n")
        stream.flush()
        for name in (f"/dev/fd/{stream.fileno()}", f"/proc/self/fd/{stream.fileno()}"):
            write_atomically(Path(name), b"report\n")
    assert (tmp_path / "all.log").read_bytes() == b"before\nreport\nreport\n"
    assert [path.name for path in tmp_path.iterdir()] == ["all.log"]


WRITES = re.compile(
    r"\.write_(?:text|bytes)\(|mk[sd]temp\(|NamedTemporaryFile\(|TemporaryDirectory\(|open\([^)\n]*[\"'][wax]b?[\"']"
)
OTHERS = {
    "transport/ssh/openssh.py": "a log, where /proc can not name it",
    "probe/children.py": "a folder with a keeper",
}


def test_files_are_written_in_one_place() -> None:
    package = Path(nccl_doctor.__file__).parent
    writers = {str(path.relative_to(package)) for path in package.rglob("*.py") if WRITES.search(path.read_text())}
    assert writers == {"text/machine.py", *OTHERS}


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_a_stranger_left_in_a_shared_folder_gets_no_report(tmp_path: Path, kind: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    place = shared / "report"
    if kind == "file":
        place.write_text("theirs")
    else:
        os.mkfifo(place)
    place.chmod(0o666)
    os.chown(place, 12345, 12345)
    with pytest.raises(OSError, match="another user made that file"):
        try_file(place)
    with pytest.raises(OSError, match="another user made that file"):
        write_atomically(place, b"secret", private=True)
    assert kind == "pipe" or place.read_text() == "theirs"
    shared.chmod(0o755)  # the folder's owner alone puts files there: as before, its owner and mode stay
    if kind == "file":
        write_atomically(place, b"mine", private=True)
        assert (place.stat().st_uid, place.read_text()) == (12345, "mine")
