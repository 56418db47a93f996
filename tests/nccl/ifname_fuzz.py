"""Compares the model with real libnccls over random hosts and settings: the program behind scripts/ifname-fuzz."""

from __future__ import annotations

import argparse
import functools
import random
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl.interfaces import Chosen, choose
from nccl_doctor.nccl.versions import parse_version
from nccl_doctor.snapshot.network import Interfaces
from tests.nccl.layouts import layout
from tests.nccl.libnccl import observe

SETTINGS_PER_HOST = 5
WHEELS = (("nvidia-nccl-cu13", (2, 27, 7)), ("nvidia-nccl-cu12", (2, 16, 2)), ("nvidia-nccl-cu11", (2, 14, 3)))
"""Each wheel with the first version it has; the smaller one first."""


@dataclass(frozen=True)
class Trial:
    """One question: libnccl's answer beside the model's, as "name address" or NCCL's words."""

    batch: str
    setting: dict[str, str]
    libnccl: str
    model: str
    interfaces: Interfaces


def trials(library: Path, version: str, count: int, seed: int) -> list[Trial]:
    """Asks libnccl and the model ``count`` times (rounded up to whole hosts)."""
    source = random.Random(seed)
    layouts = [layout(source, SETTINGS_PER_HOST) for _ in range(-(-count // SETTINGS_PER_HOST))]
    return [
        Trial(one.batch, setting, _say(answer, version), model_says(seen.interfaces, setting, version), seen.interfaces)
        for one, seen in zip(layouts, observe(library, layouts), strict=True)
        for setting, answer in zip(one.settings, seen.answers, strict=True)
    ]


def model_says(interfaces: Interfaces, setting: dict[str, str], version: str) -> str:
    """The model's answer in the words of :class:`Trial`."""
    choice = choose(interfaces, setting, parse_version(version))
    if isinstance(choice, Unknown):
        return choice.reason
    if isinstance(choice.bootstrap, Chosen):
        return f"{choice.bootstrap.name} {choice.bootstrap.address}"
    return choice.bootstrap.words


def _say(answer: dict[str, Any], version: str) -> str:
    if answer["version"] != version:
        raise RuntimeError(f"asked libnccl {version}, and {answer['version'] or answer['error']} answered")
    if answer["error"] is not None:
        return str(answer["error"])
    return f"{answer['interface']} {answer['address']}"


def fetch(version: str, cache: Path) -> Path:
    """The libnccl.so.2 of this version, out of its wheel on the package index, kept in ``cache``."""
    target = cache / version / "libnccl.so.2"
    if target.exists():
        return target
    package = next(name for name, since in WHEELS if parse_version(version) >= since)
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(target.parent), f"{package}=={version}"], check=True)
    wheel = next(target.parent.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/libnccl.so.2"))
        partial = target.with_suffix(".part")
        partial.write_bytes(archive.read(member))
    wheel.unlink()
    return partial.rename(target)


def fuzz_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that programs which ask real libnccls share."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--versions", default="2.18.3,2.28.9,2.30.7,2.32.3", help="libnccl versions, with commas between"
    )
    parser.add_argument("--trials", type=int, default=500, help="questions to each version")
    parser.add_argument("--seed", type=int, default=1, help="the same hosts and settings again")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "nccl-doctor" / "libnccl")
    return parser


def main() -> None:
    """Prints equal and different answers for each version; exit status 1 where any differs."""
    options = fuzz_parser("ifname-fuzz", __doc__).parse_args()
    different = 0
    say = functools.partial(print, flush=True)
    for version in options.versions.split(","):
        done = trials(fetch(version, options.cache), version, options.trials, options.seed)
        wrong = [trial for trial in done if trial.libnccl != trial.model]
        different += len(wrong)
        picked = dict(Counter(trial.libnccl.split()[0] for trial in done).most_common(6))
        say(f"{version}: {len(done) - len(wrong)} equal, {len(wrong)} different; answers: {picked}")
        for trial in wrong[:5]:
            say(f"  {trial.setting}\n    libnccl {trial.libnccl}\n    model   {trial.model}\n    {trial.batch!r}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
