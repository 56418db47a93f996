"""Where a lab that outlives its maker is written down, for `scripts/lab`."""

import json
import os
from pathlib import Path

from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.host import LabHost

STATE = Path(os.environ.get("NCCL_DOCTOR_LAB", "/run/nccl-doctor-lab.json"))
"""File of the standing lab; with another one in NCCL_DOCTOR_LAB, a second lab stands beside the first."""


def save(lab: Lab) -> None:
    """Write down a detached lab."""
    hosts = [{"name": host.name, "address": host.address, "pid": host.pid} for host in [*lab.hosts, lab.controller]]
    started = _started(lab.supervisor)
    STATE.write_text(json.dumps({"supervisor": lab.supervisor, "started": started, "hosts": hosts}))


def load() -> Lab | None:
    """Take hold of the lab that was written down, or None where none stands; what a dead one left is removed."""
    if not STATE.exists():
        return None
    state = json.loads(STATE.read_text())
    # PIDs are used again; with its start time a process is known for certain.
    if _started(state["supervisor"]) != state["started"]:
        STATE.unlink()
        return None
    return Lab(state["supervisor"], [LabHost(**host) for host in state["hosts"]])


def load_or_fail() -> Lab:
    """As `load`, but the lab must stand."""
    lab = load()
    if lab is None:
        raise LabError("No lab stands; 'scripts/lab up' builds one.")
    return lab


def _started(pid: int) -> int | None:
    """Start time of a process in ticks since boot (proc(5), field 22), or None where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return None
