"""A collective did not end in time.

What it means: Some rank did not take part in a collective, or its data did not get through. What is seen is the
waiting ranks; the one to look for is that which is missing from the list, behind in SeqNum, or silent.

How we know: The watchdog of torch's ProcessGroupNCCL ("Watchdog caught collective operation timeout:
WorkNCCL(SeqNum=6, OpType=BROADCAST"), gloo's "Timed out waiting 1800000ms for recv operation", Horovod's stalled
ranks. If no collective had ended before (last completed work -1), the ranks never came together and the network is to
blame.

Fix: Compare where each rank is (py-spy dump, torch's flight recorder). Steps that only rank 0 does (checkpoint,
evaluation, download) need a longer time-out or a barrier of their own.

References: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; default time-out 30 minutes to torch 2.1, 10 minutes
from 2.2.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD903")
