"""Launchers or ranks are waiting for each other, and the job does not start.

What it means: torchrun starts a node's ranks once --nnodes nodes have met, all at the same address and port, with the
same --rdzv_id and, without a rendezvous backend, each with its own --node_rank. Until then it waits, for ten minutes by
default, and prints nothing.

Ranks meet in init_process_group, each with its own RANK, and all with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE.

How we know: from the processes of torchrun (and of accelerate's launcher) on every host, their settings in command
lines and torchrun's PET_ variables, their connections, and the fact that they had no ranks and used no CPU time between
two samples. For ranks in init_process_group, from their variables, and whether they are connected to the store.

Fix: Start the missing node, or all of them with the same options. If all are running and one can't reach the store,
`nccl-doctor check` finds the cause.

References: torch/distributed/run.py and torch/distributed/elastic/rendezvous (torch 2.13).
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD714")
