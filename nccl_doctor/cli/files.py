"""Writing what the user asked to have in a file."""

from __future__ import annotations

import os
from pathlib import Path

from nccl_doctor.errors import DoctorError


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Writes beside the file's place and renames, so that a reader never sees half of it.

    What is there and no plain file (/dev/null, /dev/stdout, a named pipe) is written to as it is: a rename would put a
    plain file in its place. A link is followed.

    Args:
        path: the file.
        text: all of it.
        mode: of a new file, before the umask.

    Raises:
        DoctorError: it can't be written.
    """
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        if place.exists() and not place.is_file():
            path.write_text(text, encoding="utf-8")
            return
        try:
            draft.touch(mode)
            draft.write_text(text, encoding="utf-8")
            draft.replace(place)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DoctorError(f"{path}: can't be written: {error.strerror}") from error
