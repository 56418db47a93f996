"""A rank was refused by another one.

What it means: Nothing listened at the address and port where the connection went: the process there had ended or not
yet begun, or the address belongs to no host of this job (a stale init file, a loopback address, a wrong master
address).

How we know: NCCL's "Connect to 10.0.0.2<4242> failed : Connection refused" and its older and newer wordings, torch's
"The client socket has failed to connect to … (errno: 111", gloo's "SO_ERROR: Connection refused". NCCL retries for a
minute before it gives up, so single retries at INFO level are normal at the start.

Fix: Look for the first error of the process that should have listened. Check MASTER_ADDR and MASTER_PORT on every
host. `nccl-doctor check` tests every port and pair.

References: NCCL's src/misc/socket.cc (2.12 to 2.28) and src/os/linux.cc (2.29 on);
torch/csrc/distributed/c10d/socket.cpp.
"""

from __future__ import annotations

from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD310", job_wide=False, errors=("ECONNREFUSED",))
