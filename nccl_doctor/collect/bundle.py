"""What is sent to a host: one shell line that starts Python, and behind it, over stdin, the probe's source.

``python -`` would read stdin to its end before it runs anything, so a loader stands on the command line and reads
exactly the bundle's length; the rest of stdin then carries requests. It ends where nothing comes for a while.
"""

from __future__ import annotations

import math
import shlex
import zlib
from pathlib import Path

from nccl_doctor import probe
from nccl_doctor.collect.start_failure import DAMAGED, SILENT
from nccl_doctor.text.once import once

LOADER = (
    "import os,signal,sys,zlib;signal.signal(14,lambda *_:sys.exit('{silent}'));signal.alarm({silence});"
    "print('{mark}'[::-1]+'{{}}',flush=True);b=bytearray();e='{damaged}';"
    "[b.extend(os.read(0,{size}-len(b))or sys.exit(e))or signal.alarm({silence})"
    "for _ in iter(lambda:len(b)<{size},False)];zlib.crc32(b)=={crc} or sys.exit(e);"
    "exec(compile(zlib.decompress(b),'<nccl-doctor>','exec'))"
)
"""Says that it is ready, by the nonce and an empty object, and reads the probe only then: a login that runs something
else would take it for commands. The nonce stands backwards, so that an echo of the command line is no such word. Its
length and digest go ahead: channels are known that lost bytes (kubernetes#112834)."""


@once
def bundle() -> bytes:
    """The probe, compressed: bootstrap.py's text and a call that hands it every module's source."""
    root = Path(probe.__file__).parent
    sources = {"nccl_doctor.__init__": ""}
    _gather(root, "nccl_doctor.probe", sources)
    bootstrap = (root / "bootstrap.py").read_text(encoding="utf-8")
    program = f"{bootstrap}\n\nstart({sources!r})\n"
    return zlib.compress(program.encode())


def login_mark(nonce: str) -> str:
    """What the login shell says when it has come to our line: its start-up files are through."""
    return f"ncdoctor-{nonce[::-1][:16]}"


def command(python: str, nonce: str, silence_s: float) -> str:
    """The line that starts the probe under a host's interpreter; ``nonce``, letters and digits, marks its words.

    Its loader ends when nothing has come for ``silence_s``.

    ``exec`` spares a shell that would have to die too. Double quotes without $, ` and ! mean the same to sh, csh and
    fish. ``-I``: no file in somebody's home and no PYTHON* variable can shadow a module.
    """
    loader = LOADER.format(
        size=len(bundle()),
        crc=zlib.crc32(bundle()),
        damaged=DAMAGED,
        silent=SILENT,
        silence=math.ceil(silence_s),
        mark=nonce[::-1],
    )
    interpreter = "~/" + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
    return f'echo {login_mark(nonce)}; exec {interpreter} -I -c "{loader}"'


def _gather(folder: Path, package: str, sources: dict[str, str]) -> None:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir() and (entry / "__init__.py").is_file():
            _gather(entry, f"{package}.{entry.name}", sources)
        elif entry.name.endswith(".py"):
            sources[f"{package}.{entry.name[:-3]}"] = entry.read_text(encoding="utf-8")
