"""Known bugs in NCCL versions (known_bad.json), and the bugs that might affect the job that wrote a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nccl_doctor import nccl
from nccl_doctor.nccl.versions import parse_version


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Return the known bugs. The fields are explained in .github/CONTRIBUTING.md."""
    return tuple(json.loads((Path(nccl.__path__[0]) / "known_bad.json").read_text("utf-8")))


ON_ARM = ("GB10", "GH200", "GB200", "GB300")
"""Names of GPUs on NVIDIA's boards with ARM processors."""


def fitting(version: str, gpus: Iterable[str], ranks: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the known bugs that match an NCCL version, GPU names, and the number of ranks on each host.

    ``gpus`` and ``ranks`` are the GPUs and ranks that a log mentions. Bugs that depend on a plugin's version or on a
    variable are omitted, because logs rarely contain this information.
    """
    try:
        number = parse_version(version)
    except ValueError:
        return
    names = [*gpus]
    machine = "aarch64" if any(part in name for name in names for part in ON_ARM) else ""
    for row in rows():
        first, fixed = map(parse_version, row["nccl"])
        where = row["where"]
        if (
            first <= number < fixed
            and ("gpu" not in where or any(where["gpu"] in name for name in names))
            and len(ranks) >= where.get("hosts", 1)
            and where.get("machine", machine) == machine
            and ("uneven" not in where or len({*ranks.values()}) > 1)
            and "ofi_below" not in where
        ):
            yield row
