"""What follows from an address that leads nowhere: the dials that went to it, and no others."""

from __future__ import annotations

from collections.abc import Collection

from nccl_doctor.registry import View
from nccl_doctor.snapshot import Mesh


def failed_by(view: View, address: str, sources: Collection[str]) -> list[dict[str, str]]:
    """The pairs between which only those dials failed that these hosts made to this address, as {"src", "dst"}."""
    dials = view.snapshot.mesh.failed if isinstance(view.snapshot.mesh, Mesh) else ()
    by_address = {(dial.src, dial.dst) for dial in dials if dial.src in sources and dial.address == address}
    otherwise = {(dial.src, dial.dst) for dial in dials if dial.address != address}
    return [{"src": src, "dst": dst} for src, dst in sorted(by_address - otherwise)]
