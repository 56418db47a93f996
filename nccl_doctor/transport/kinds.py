"""The ways of reaching hosts, by the names that ``--transport`` takes, each with the module that makes it.

A new one is a module with its options of a node (:class:`~nccl_doctor.model.NodeOptions`), its failures
(:class:`~nccl_doctor.snapshot.EngineFailure`) and ``make``, and a line here.
"""

from __future__ import annotations

MODULES = {
    "auto": "choice",
    "paramiko": "choice",
    "openssh": "choice",
    "local": "local",
}
