"""Real wheels of what goes along to hosts, for other machines than this one: ``python -m tests.wheels`` fetches them.

scripts/setup does so, so that tests need no index.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.patience import LONG_S

FOLDER = Path(sys.prefix) / "wheels"
PLATFORMS = {
    "manylinux2014_x86_64": "*linux*_x86_64*.whl",
    "manylinux2014_aarch64": "*linux*_aarch64*.whl",
    "macosx_11_0_arm64": "*macosx*.whl",
}
"""And what the wheels are called that pip takes for them."""
PACKAGES = ("psutil", "py-spy")


def found(package: str, platform: str) -> list[Path]:
    """The wheels of the package's version here for a platform: one or none."""
    return list(FOLDER.glob(f"{package.replace('-', '_')}-{version(package)}-{PLATFORMS[platform]}"))


def fetch() -> Path:
    """The folder, with all of them in it."""
    for platform in PLATFORMS:
        wanted = [f"{name}=={version(name)}" for name in PACKAGES if not found(name, platform)]
        if not wanted:
            continue
        kind = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--abi=abi3", f"--platform={platform}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *kind, f"--dest={FOLDER}", *wanted]
        subprocess.run(command, check=True, timeout=LONG_S)
    return FOLDER


if __name__ == "__main__":
    fetch()
