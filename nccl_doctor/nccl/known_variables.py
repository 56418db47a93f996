"""The register of the variables that NCCL and its company know.

``known_variables.json`` holds NCCL's own: the parameters and ``getenv`` calls of NVIDIA/nccl's source at its tags 2.3.5
to 2.30.7, and the strings of the nvidia-nccl wheels 2.31.2 and 2.32.3. "type" is "int" for what ``strtoll`` reads;
"since" the first version that has it, "last" the last one, "removed" the first one without it.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from nccl_doctor.nccl.versions import Version

PLUGIN_PREFIXES = (
    "NCCL_OFI_",  # aws-ofi-nccl
    "NCCL_FASTRAK_",  # Google's net plugins
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_TUNER_",
    "NCCL_INSPECTOR_",  # NCCL's inspector profiler plugin
    "NCCL_PROFILE",
    "NCCL_SHARP_",  # nccl-rdma-sharp-plugins
    "NCCL_UCX_",
    "NCCL_PLUGIN_",
    "NCCL_IBEXT_",
    "NCCL_TESTS",
)
"""Names that begin so belong to a plugin or a tool, which may know any number of them."""

BUILD_NAMES = frozenset(
    f"NCCL_{part}"
    for part in ("ROOT", "ROOT_DIR", "HOME", "DIR", "PATH", "VERSION", "INCLUDE_DIR", "INCLUDE_DIRS", "LIB_DIR")
) | {"NCCL_LIBRARY", "NCCL_LIBRARIES", "NCCL_LIB", "NCCL_VER"}
"""Read by builds and container images, not by the library."""

PYTORCH_NAMES = frozenset(
    f"NCCL_{part}"
    for part in ("BLOCKING_WAIT", "ASYNC_ERROR_HANDLING", "DESYNC_DEBUG", "ENABLE_TIMING", "USE_COMM_NONBLOCKING")
)
"""torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp; from torch 2.2 on called TORCH_NCCL_…."""

CLOSE = 0.8
"""difflib's ratio from which a name counts as misspelt; NCCL_SOCKET_IFNAMES is 0.97 from its model."""


@dataclass(frozen=True)
class Known:
    """A variable of NCCL's own; ``last`` and ``removed`` as in the register."""

    name: str
    type: Literal["int", "text"] | None
    since: str
    last: str | None = None
    removed: str | None = None

    def absent(self, version: Version) -> str | None:
        """Why this version does not know the variable, None if it does."""
        if version[:2] < _pair(self.since):
            return f"NCCL knows it from {self.since} on"
        if self.removed is not None and version[:2] >= _pair(self.removed):
            return f"NCCL knows it no more since {self.removed}"
        if self.last is not None and version[:2] > _pair(self.last):
            return f"NCCL knew it up to {self.last}"
        return None


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


@cache
def register() -> dict[str, Known]:
    """NCCL's own variables by name."""
    text = resources.files(__package__).joinpath("known_variables.json").read_text(encoding="utf-8")
    return {
        name: Known(name, row.get("type"), row["since"], row.get("last"), row.get("removed"))
        for name, row in json.loads(text).items()
    }


def is_known(name: str) -> bool:
    """Whether NCCL, a plugin, PyTorch or a build reads this variable; true for all that is not called NCCL_…."""
    return (
        not name.startswith("NCCL_")
        or name in register()
        or name in BUILD_NAMES
        or name in PYTORCH_NAMES
        or name.startswith(PLUGIN_PREFIXES)
    )


def nearest(name: str) -> str | None:
    """The known name this one looks like, None where none is close."""
    upper = name.upper()
    found = difflib.get_close_matches(upper, register(), n=1, cutoff=CLOSE)
    return found[0] if found else None
