"""A process was started without what torch.distributed reads.

What it means: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT is missing, mostly because the script was
started by python instead of torchrun, or because it expects --local_rank, which torchrun does not pass.

How we know: "environment variable RANK expected, but not set", KeyError: 'LOCAL_RANK', "unrecognized arguments:
--local-rank=0".

Fix: Start by torchrun, or set the variables from the scheduler's. `nccl-doctor launch` prints the command for each
host.

References: torch/distributed/rendezvous.py.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD916")
