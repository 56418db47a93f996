"""The plugins that NCCL would load: libnccl-net.so and its kin, wherever ld.so(8) or a vendor puts them."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Mapping

from nccl_doctor.probe.unavailable import Unavailable

FOLDERS = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/aws-ofi-nccl/lib", "/usr/local/gib/lib64",
           "/usr/local/tcpx/lib64", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib", "/usr/lib",
           "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")  # fmt: skip
"""Where AWS (EFA), Google (gIB, TCPX) and NVIDIA (HPC-X) install theirs, and ld.so's own."""
NAME = re.compile(r"libnccl-(?:net|tuner|profiler)[A-Za-z0-9_-]*\.so")
"""NCCL loads libnccl-net.so or libnccl-net-$NCCL_NET_PLUGIN.so, and likewise tuners and profilers (src/plugin)."""
VERSION = re.compile(rb"aws-ofi-nccl[ /-]v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}[A-Za-z0-9.-]{0,20})")
LIMIT = 64 * 1024 * 1024


def collect(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """snapshot.NcclPlugin of each, a file that has several names once; ``env`` holds the job's own variables."""
    library_path = {**os.environ, **env}.get("LD_LIBRARY_PATH", "")
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys([*filter(None, library_path.split(":")), *FOLDERS]):
        try:
            names = sorted(os.listdir(folder))
        except OSError:  # most of them are not there
            continue
        for name in filter(NAME.fullmatch, names):
            path = os.path.join(folder, name)
            found.setdefault(os.path.realpath(path), {"name": name, "path": path, **_content(path)})
    return list(found.values())


def parse_version(data: bytes) -> str | None:
    """The version that aws-ofi-nccl writes into its log, and so into its file."""
    match = VERSION.search(data)
    return match.group(1).decode() if match else None


def _content(path: str) -> dict[str, str | None]:
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT)
    except OSError as error:
        raise Unavailable(f"{path} can't be read: {error.strerror}") from error
    return {"digest": hashlib.sha256(data).hexdigest(), "version": parse_version(data)}
