"""A host with little memory left: what sshd starts shares a limit, at which the kernel kills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.cluster import Lab
from tests.lab.host import LabHost

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(lab: Lab, host: LabHost) -> Iterator[Path]:
    """A limit of :func:`set_limit` over a host's sshd and all that it starts from now on; ends the lab with it."""
    old = _V1.is_dir()
    if not old:
        (_V2 / "cgroup.subtree_control").write_text("+memory")
    group = (_V1 if old else _V2) / f"lab-{host.pid}"
    group.mkdir()
    try:
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
        (sshd,) = [pid for pid in children if "sshd" in Path(f"/proc/{pid}/cmdline").read_text()]
        (group / "cgroup.procs").write_text(sshd)
        yield group
    finally:
        lab.down()
        group.rmdir()


def set_limit(group: Path, mebibytes: int) -> None:
    """How much the group's processes may have together."""
    (group / ("memory.limit_in_bytes" if group.parent == _V1 else "memory.max")).write_text(f"{mebibytes}M")
