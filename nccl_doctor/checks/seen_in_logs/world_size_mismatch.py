"""Ranks and world size do not fit together.

What it means: Two processes have one rank, a rank is not below the world size, hosts were told different sizes, or
two jobs met at one address.

How we know: NCCL's "Bootstrap Root : rank 1 of 8 ranks has already checked in" and "mismatch in rank count from
procs", Lightning's and torch's checks of ranks, MPI's "not enough slots".

Fix: Compare RANK, WORLD_SIZE, --nnodes, --node_rank, --nproc_per_node and the scheduler's tasks per node on all
hosts; `nccl-doctor launch` prints them.

References: NCCL's src/bootstrap.cc.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD915")
