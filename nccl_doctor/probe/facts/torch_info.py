"""torch as training would get it, asked of a second interpreter and read from files; torch is never imported."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping

from nccl_doctor.probe.interpreter import Interpreter
from nccl_doctor.probe.tools import output
from nccl_doctor.probe.unavailable import Unavailable

LIBRARY = "libnccl.so.2"
NCCL_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([^-]+)\.dist-info", re.ASCII)


def collect(env: Mapping[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    """snapshot.TorchInfo; None where torch is not installed. Tells the interpreter which libnccl torch will load.

    Args:
        env: the job's own variables.
        interpreter: the one that training would run.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        Unavailable: the interpreter fails or does not end, or torch has no version.py.
    """
    library: str | None = None
    try:
        found = _collect({**os.environ, **env}, interpreter, deadline)
        library = found["nccl_library"] if found else None
    finally:
        interpreter.decide(library)
    return found


def _collect(environ: dict[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    origin, path, prefix = interpreter.torch()
    if not origin:  # a mere folder of that name has none
        return None
    location = os.path.dirname(origin)
    try:
        with open(os.path.join(location, "version.py"), encoding="utf-8", errors="replace") as file:
            told = parse_version(file.read())
    except FileNotFoundError:
        raise Unavailable(f"{location} has no version.py") from None
    folders = [*path, os.path.dirname(location)]
    wheel = wheel_library(folders)
    return {
        "version": told["__version__"],
        "cuda": told["cuda"],
        "hip": told["hip"],
        "nccl": wheel_version(folders) if wheel else None,
        "nccl_library": wheel or _first([f"{location}/lib"]) or _system_library(environ, prefix, deadline),
        "location": location,
    }


def parse_version(text: str) -> dict[str, str | None]:
    """``__version__``, ``cuda`` and ``hip`` of torch/version.py, which writes ``cuda: Optional[str] = '12.8'``.

    Raises:
        Unavailable: it has no __version__.
    """
    told: dict[str, str | None] = dict.fromkeys(("__version__", "cuda", "hip"))
    for name, value in re.findall(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE):
        if name in told:
            told[name] = value
    if told["__version__"] is None:
        raise Unavailable("torch/version.py names no version")
    return told


def wheel_library(folders: list[str]) -> str | None:
    """The library of the nvidia-nccl wheel, which torch's wheels find by their RPATH before any other."""
    return _first([f"{folder}/nvidia/nccl/lib" for folder in folders if folder])


def wheel_version(folders: list[str]) -> str | None:
    """The version of the nvidia-nccl wheel, from the name of its metadata folder (PEP 376)."""
    for folder in folders:
        try:
            names = os.listdir(folder) if folder else []
        except OSError:  # sys.path may name what is not there, or a zip file
            continue
        for name in sorted(names):
            match = NCCL_WHEEL.fullmatch(name)
            if match:
                return match.group(1)
    return None


def _system_library(environ: dict[str, str], prefix: str, deadline: float) -> str | None:
    """The library where ld.so(8) would find it: LD_LIBRARY_PATH, conda's own lib folder, its cache."""
    found = _first([*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), f"{prefix}/lib"])
    if found:
        return found
    try:
        cache = output(["ldconfig", "-p"], deadline, accept=range(256))  # musl's has no cache to print
    except FileNotFoundError:
        return None
    match = re.search(rf"^\s*{re.escape(LIBRARY)} .*=> (/.*)$", cache, re.MULTILINE)
    return match.group(1) if match else None


def _first(folders: list[str]) -> str | None:
    paths = (os.path.join(folder, LIBRARY) for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)
