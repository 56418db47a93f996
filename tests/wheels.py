"""Real wheels of what goes along to hosts, for other machines than this one: ``python -m tests.wheels`` fetches them.

scripts/setup does so, so that tests need no index.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "wheels"
PLATFORMS = {
    "manylinux2014_x86_64": "*linux*_x86_64*.whl",
    "manylinux2014_aarch64": "*linux*_aarch64*.whl",
    "macosx_11_0_arm64": "*macosx*.whl",
}
"""And what the wheels are called that pip takes for them."""
PACKAGES = ("psutil", "py-spy")


def fetch() -> Path:
    """The folder, with all of them in it."""
    wanted = [f"{name}=={version(name)}" for name in PACKAGES]
    for platform, pattern in PLATFORMS.items():
        if len(list(FOLDER.glob(pattern))) >= len(wanted):
            continue
        kind = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--abi=abi3", f"--platform={platform}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *kind, f"--dest={FOLDER}", *wanted]
        subprocess.run(command, check=True)
    return FOLDER


if __name__ == "__main__":
    fetch()
