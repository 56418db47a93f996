"""A real bash in an empty root directory: nothing can be run there, and every attempt is written down."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PREAMBLE = """\
command_not_found_handle() { enable printf; printf '%s\\0' "$@" $'\\1' >> /record; [[ a = b ]]; }
enable -n $(enable -a | while read -r _ name; do case $name in enable|.|source|:) ;; *) echo "$name";; esac; done)
"""
"""Takes the builtins away, too, so that they end where any other word does: nothing but redirections is carried out."""


@dataclass(frozen=True)
class Attempt:
    """What a line came to.

    Attributes:
        ran: each command that was attempted, with its arguments as a program would get them.
        wrote: files that came to be.
        said: the shell's own complaints.
    """

    ran: tuple[tuple[str, ...], ...]
    wrote: tuple[str, ...]
    said: str


class ShellWithoutPrograms:
    """Tries lines; needs root for chroot(2)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        bash = shutil.which("bash")
        assert bash
        linked = subprocess.run(["ldd", bash], capture_output=True, text=True, check=True).stdout
        for source in (bash, *re.findall(r"(/\S+)", linked)):
            target = root / source.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        self._bash = bash
        for folder in ("dev", "etc", "tmp", "home"):
            (root / folder).mkdir(exist_ok=True)
        self._own = self._files()

    def attempt(self, line: str, folders: tuple[str, ...] = ()) -> Attempt:
        """Gives a line to the shell as if it had been pasted; ``folders`` are there before."""
        for folder in folders:
            (self._root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [self._bash, "--norc", "--noprofile", "-c", f"{PREAMBLE}\n{line}\n"],
            env={"PATH": "/nonexistent", "HOME": "/home"},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
            check=False,
            preexec_fn=self._enter,
        )
        made = self._files() - self._own
        record = self._root / "record"
        told = record.read_bytes().decode(errors="surrogateescape") if record.exists() else ""
        for path in made:
            (self._root / path.lstrip("/")).unlink()
        calls = [call.split("\0") for call in told.split("\0\1\0")[:-1]]
        ran = tuple(tuple(call) for call in calls)
        return Attempt(ran, tuple(sorted(made - {"/record"})), done.stderr.decode(errors="replace"))

    def _enter(self) -> None:
        os.chroot(self._root)
        os.chdir("/")

    def _files(self) -> set[str]:
        return {f"/{path.relative_to(self._root)}" for path in self._root.rglob("*") if path.is_file()}
