"""Ranks waited for the master or for each other until the time ran out.

What it means: Not all ranks came to the meeting: a host did not start, has another master address or port or world
size, or does not reach the master.

How we know: torch's "The client socket has timed out after 60s while trying to connect to (10.0.0.2, 29500)", "Timed
out after 601 seconds waiting for clients. 3/4 clients joined", the store based barrier's counts,
RendezvousTimeoutError and RendezvousConnectionError, JAX's coordination service.

Fix: Start all hosts within the time-out, with the same --rdzv-endpoint or --master_addr and --master_port;
`nccl-doctor check` tests the port from every host, `nccl-doctor launch` prints the commands.

References: torch/csrc/distributed/c10d/socket.cpp and TCPStore.cpp; torch/distributed/elastic/rendezvous.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD902")
