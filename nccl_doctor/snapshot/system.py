"""The host itself: who it is, its software, its limits."""

from __future__ import annotations

from typing import Literal

from nccl_doctor.snapshot.values import (
    Clipped,
    Count,
    InterfaceName,
    IpAddress,
    Observed,
    Output,
    Path,
    Seconds,
    SignedSeconds,
    Version,
)


class Identity(Observed):
    """Who the host is and whom we are there.

    Attributes:
        machine: the processor architecture, as ``uname -m``.
        boot_id: /proc/sys/kernel/random/boot_id; equal for two nodes on one machine.
        container: "docker", "podman", "kubernetes", "lxc", … or None outside any.
    """

    hostname: str
    user: str
    uid: Count
    machine: str
    kernel: str
    boot_id: str | None
    container: str | None


class PythonInfo(Observed):
    """The interpreter that training uses.

    Attributes:
        failure: what it says where it ends as training would start it, with the login's variables and site packages;
            None where it runs. The probe itself runs isolated from those.
    """

    executable: Path
    version: Version
    prefix: Path
    failure: str | None = None


class TorchInfo(Observed):
    """torch as that interpreter has it, read from metadata without importing it.

    Attributes:
        version: e.g. "2.13.0+cpu".
        cuda: the CUDA version it was built for; None for a CPU build.
        nccl: version of the nvidia-nccl wheel it loads; None where it has none or links NCCL statically.
        nccl_library: path of libnccl.so.2, where there is one.
    """

    version: Version
    cuda: Version | None
    hip: Version | None
    nccl: Version | None
    nccl_library: Path | None
    location: Path


class LibncclAnswer(Observed):
    """What the host's own libnccl answered when it was asked for a unique id (probe/facts/torch_info.py).

    Attributes:
        interface: which it names as its bootstrap's; None where the line could not be read.
        error: NCCL's own words, or why it could not be asked.
    """

    version: Version | None
    interface: InterfaceName | None
    address: IpAddress | None
    error: Clipped | None


class Gpu(Observed):
    """A GPU as nvidia-smi's query mode tells; memory in MiB."""

    index: Count
    name: str
    uuid: str
    memory_total_mib: Count | None
    memory_used_mib: Count | None
    driver: str


class ResourceLimits(Observed):
    """ResourceLimits of a process started over SSH; None is unlimited. memlock in bytes."""

    nofile_soft: Count | None
    nofile_hard: Count | None
    memlock_soft: Count | None
    memlock_hard: Count | None


class Shm(Observed):
    """The shared-memory file system, in bytes; ``problem``: it is not there, or this user may not write to it."""

    total_bytes: Count
    free_bytes: Count
    problem: Literal["missing", "forbidden"] | None = None


class ConfigFile(Observed):
    """A file NCCL may read its variables from; ``text`` None where it does not exist."""

    path: Path
    text: Output | None


class Clock(Observed):
    """The host's clock against ours: ``offset_s`` positive where it is ahead, known to within ``error_s``."""

    offset_s: SignedSeconds
    error_s: Seconds
