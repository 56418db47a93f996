"""Dials to interfaces over which data moves beside the first: which one, who uses it, and how to leave it out."""

from __future__ import annotations

from nccl_doctor.checks.view import View
from nccl_doctor.model.finding import Finding
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.snapshot import Dial, Mesh, Rail


def rail_of(mesh: Mesh, dial: Dial) -> Rail | None:
    """The interface that a dial went to, where it is not the one that comes first on its host."""
    return mesh.rails.get(dial.dst, {}).get(dial.address)


def by_rail(view: View, found: Finding, rail: Rail) -> Finding:
    """The finding with the interface in its sentence, and with the setting that leaves it out."""
    used = f"by {rail.interface}, over which {' and '.join(rail.users)} will move data, too"
    message = f"{found.message.removesuffix('.')} {used}."
    first = {name: one.chosen.name for name, one in view.nccl.by_host.items() if one.chosen is not None}
    others_fail = any(rail_of(view.mesh, dial) is None for dial in view.mesh.failed)
    if others_fail or rail.interface in first.values() or len(first) < len(view.snapshot.reached):
        return found.model_copy(update={"message": message})
    variable, sign = ("NCCL_SOCKET_IFNAME", "=") if "NCCL" in rail.users else ("GLOO_SOCKET_IFNAME", "")
    summary = "Mend the interface: its cable, the switch's port or VLAN; or leave it out, in the job's environment:"
    fix = setting(summary, variable, {host: f"{sign}{name}" for host, name in first.items()})
    return found.model_copy(update={"message": message, "fix": fix})
