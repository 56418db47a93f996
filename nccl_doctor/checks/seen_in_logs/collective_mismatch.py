"""Ranks call different collectives, or with different sizes.

What it means: A collective needs the same call with the same sizes on every rank. Where code depends on the rank or
its data, they hang, fail or exchange the wrong data.

How we know: NCCL's "message truncated : receiving 1048576 bytes instead of 65536" and "collective mismatch error",
torch's "Detected mismatch between collectives" (TORCH_DISTRIBUTED_DEBUG=DETAIL), watchdog lines or flight-recorder
dumps with one SeqNum and different OpType or sizes.

Fix: Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the ranks and the calls. Compare code, NCCL_ALGO and
NCCL_PROTO of all hosts.

References: NCCL's src/transport/net_socket.cc and net_ib.cc; torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD904")
