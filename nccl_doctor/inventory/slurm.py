"""The hosts of a Slurm job, from the variables that Slurm sets in it (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES")."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_doctor.inventory.parsed import ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.patterns import named
from nccl_doctor.inventory.values import MAX_NPROC

NODELIST = "SLURM_JOB_NODELIST"


def read(environ: Mapping[str, str]) -> ParsedInventory:
    """What Slurm says of the job that we run in.

    Raises:
        UsageError: where the list can't be understood.
    """
    place = SourceLocation(NODELIST, is_file=False)
    return ParsedInventory(place, named(environ[NODELIST], place, Settings(), Settings(nproc_per_node=_ranks(environ))))


def _ranks(environ: Mapping[str, str]) -> Sourced[int] | None:
    """Ranks on a node: its GPUs, else its tasks; one task is torchrun's own and says nothing of ranks."""
    for variable, least in (("SLURM_GPUS_ON_NODE", 1), ("SLURM_NTASKS_PER_NODE", 2)):
        text = environ.get(variable, "")
        if re.fullmatch(r"[0-9]{1,4}", text) and least <= int(text) <= MAX_NPROC:
            return Sourced(int(text), SourceLocation(variable, is_file=False))
    return None
