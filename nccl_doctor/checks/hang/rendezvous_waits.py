"""Launchers or ranks are waiting for each other, and the job does not start.

What it means: torchrun starts the ranks only when all nodes that --nnodes requires have joined the rendezvous. All
nodes must use the same address, port and --rdzv_id. Without a rendezvous backend, each node needs its own --node_rank.
If nodes are missing, torchrun waits without printing a message, for ten minutes by default. With the c10d backend, a
node that can't reach the store fails after 60 s with RendezvousConnectionError.

In init_process_group, each rank needs its own RANK, and all ranks need the same MASTER_ADDR, MASTER_PORT and
WORLD_SIZE.

How we know: the launchers (torchrun or accelerate) on the hosts had started no ranks and used no CPU time between two
samples. The settings of the rendezvous are taken from the launchers' command lines, PET_ variables and connections. For
ranks in init_process_group, the evidence consists of their variables and their connections to the store.

Fix: Start the missing node, or start all nodes with the same options. If all nodes are running but a node can't reach
the store, `nccl-doctor check` finds the cause.

References: torch/distributed/run.py and torch/distributed/elastic/rendezvous (torch 2.13).
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD714")
