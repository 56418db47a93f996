"""What follows from a fault that stops some dials: what those dials failed at, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nccl_doctor.checks.view import View
from nccl_doctor.snapshot import Dial


def failed_by(view: View, address: str, sources: Collection[str]) -> list[dict[str, str]]:
    """As :func:`failed_where`, of the dials that these hosts made to this address."""
    return failed_where(view, lambda dial: dial.src in sources and dial.address == address)


def failed_where(view: View, follows: Callable[[Dial], bool]) -> list[dict[str, str]]:
    """The pairs between which only such dials failed as may follow, as {"src", "dst"}.

    A dial that a packet filter or a route explains is told of there, and says nothing against it.
    """
    dials = view.unexplained
    following = {(dial.src, dial.dst) for dial in dials if follows(dial)}
    otherwise = {(dial.src, dial.dst) for dial in dials if not follows(dial)}
    return [{"src": src, "dst": dst} for src, dst in sorted(following - otherwise)]
