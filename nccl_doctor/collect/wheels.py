"""What goes along to hosts of another kind than this machine: the wheel that fits them, which pip fetches once.

A controller on macOS, or on another processor than its hosts, has nothing in its own environment that they could load.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

from nccl_doctor.once import once

FETCH_S = 20.0
PLATFORMS = {
    "glibc": ("manylinux2014", "manylinux_2_28"),
    "musl": ("musllinux_1_1", "musllinux_1_2"),
}
"""By libc, the platforms of the wheels that load there (PEP 600, PEP 656)."""
MACHINES = ("x86_64", "aarch64", "ppc64le", "riscv64")
"""Processors of which a host may say that they are its own, as ``uname -m`` does."""


class MissingWheelError(Exception):
    """There is no wheel for such a host; says why."""


@once
def files(package: str, version: str, machine: str, libc: str, *, latest: float) -> dict[str, bytes]:
    """The files of the wheel for Linux on this processor, with this libc, by their paths in it.

    The wheel is looked for under $XDG_CACHE_HOME/nccl-doctor (XDG Base Directory Specification), where pip puts it.

    The run ends at ``latest``, on the monotonic clock: half of the time until then is left for the host.

    Raises:
        MissingWheelError: nobody has one, or pip could not fetch it within that half, 20 s at most.
    """
    if machine not in MACHINES:
        raise MissingWheelError(f"no {package} is known for {machine[:20]}")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nccl-doctor"
    wheel = _found(folder, package, version, machine, libc)
    wheel = wheel or _fetched(folder, package, version, machine, libc, min(FETCH_S, (latest - time.monotonic()) / 2))
    try:
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise MissingWheelError(f"{wheel} can't be read: {error}") from error


def _found(folder: Path, package: str, version: str, machine: str, libc: str) -> Path | None:
    family = PLATFORMS[libc][0].partition("linux")[0]
    pattern = f"{package.replace('-', '_')}-{version}-*-{family}linux*_{machine}*.whl"
    return next(iter(sorted(folder.glob(pattern))), None)


def _fetched(folder: Path, package: str, version: str, machine: str, libc: str, seconds: float) -> Path:
    """The wheel, once pip has put it into the folder."""
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else [shutil.which("pip3") or shutil.which("pip") or ""]
    wanted = f"{package} {version} for Linux on {machine} ({libc})"
    if not pip[0]:
        raise MissingWheelError(f"no pip is here to fetch {wanted}")
    platforms = [f"--platform={one}_{machine}" for one in PLATFORMS[libc]]
    kind = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--abi=abi3", "--abi=none", *platforms]
    silent = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries=1", "--timeout=5"]
    command = [*pip, "download", *silent, *kind, f"--dest={folder}", f"{package}=={version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=max(0.0, seconds), stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        raise MissingWheelError(f"pip did not fetch {wanted} in {max(0.0, seconds):.0f} s") from None
    wheel = _found(folder, package, version, machine, libc)
    if done.returncode or wheel is None:
        raise MissingWheelError(f"pip could not fetch {wanted}")
    return wheel
