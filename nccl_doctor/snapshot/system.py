"""The host itself: who it is, its software, its limits."""

from __future__ import annotations

from nccl_doctor.model import Noun


class Identity(Noun):
    """Who the host is and whom we are there.

    Attributes:
        machine: the processor architecture, as ``uname -m``.
        boot_id: /proc/sys/kernel/random/boot_id; equal for two nodes on one machine.
        container: "docker", "podman", "kubernetes", "lxc", … or None outside any.
    """

    hostname: str
    user: str
    uid: int
    machine: str
    kernel: str
    boot_id: str | None
    container: str | None


class PythonInfo(Noun):
    """The interpreter that training uses."""

    executable: str
    version: str
    prefix: str


class TorchInfo(Noun):
    """torch as that interpreter has it, read from metadata without importing it.

    Attributes:
        version: e.g. "2.13.0+cpu".
        cuda: the CUDA version it was built for; None for a CPU build.
        nccl: version of the nvidia-nccl wheel it loads; None where it has none or links NCCL statically.
        nccl_library: path of libnccl.so.2, where there is one.
    """

    version: str
    cuda: str | None
    hip: str | None
    nccl: str | None
    nccl_library: str | None
    location: str


class Gpu(Noun):
    """A GPU as nvidia-smi's query mode tells; memory in MiB."""

    index: int
    name: str
    uuid: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    driver: str


class Limits(Noun):
    """Limits of a process started over SSH; None is unlimited. memlock in bytes."""

    nofile_soft: int | None
    nofile_hard: int | None
    memlock_soft: int | None
    memlock_hard: int | None


class Shm(Noun):
    """The shared-memory file system, in bytes."""

    total_bytes: int
    free_bytes: int


class ConfigFile(Noun):
    """A file NCCL may read its variables from; ``text`` None where it does not exist."""

    path: str
    text: str | None


class Clock(Noun):
    """The host's clock against ours: ``offset_s`` positive where it is ahead, known to within ``error_s``."""

    offset_s: float
    error_s: float
