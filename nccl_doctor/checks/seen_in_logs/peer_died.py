"""A rank ended, and the others lost their connections to it.

What it means: What is seen here is the consequence. The cause is the first error of the rank that ended, on another
host or in another file, or nothing at all where the kernel killed it.

How we know: NCCL's "Connection closed by remote peer", "Connection reset by peer", ncclRemoteError, torch's "TCPStore
server has shut down too early", gloo's "Connection closed by peer", with no other fault in the log.

Fix: Give the logs of all ranks to `nccl-doctor logs`. Look into dmesg and the scheduler's record of the host that is
named.

References: NCCL's src/misc/socket.cc (socketProgress); torch/csrc/distributed/c10d/TCPStore.cpp.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD905")
