"""All wordings, by topic; each stands beside a line that it is meant for."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule
from nccl_doctor.logs.rules import (
    bootstrap,
    collectives,
    devices,
    launchers,
    ports,
    processes,
    ras,
    rendezvous,
    scripts,
    sockets,
    stalls,
    transports,
    xid,
)
from nccl_doctor.logs.whole import modules

ALL: tuple[Rule, ...] = (
    *ras.RULES,
    *bootstrap.RULES,
    *sockets.RULES,
    *ports.RULES,
    *rendezvous.RULES,
    *launchers.RULES,
    *devices.RULES,
    *xid.RULES,
    *transports.RULES,
    *collectives.RULES,
    *stalls.RULES,
    *processes.RULES,
    *scripts.RULES,
    *(rule for _, module in modules() for rule in module.RULES),
)
"""In this order: between rules of one grade that match one line, the first speaks."""
