"""Data between two ranks is retransmitted repeatedly but never acknowledged.

What it means: the ranks run the same collective, but the network between two hosts does not deliver the data. Possible
causes are a faulty cable, switch or NIC, a firewall rule that was added during the job, and a peer that lost its
address.

How we know: two samples of the kernel's socket tables (sock_diag(7)) showed unacknowledged data on a connection.
Between the samples, no data was acknowledged, although the kernel had retransmitted the data or probed the peer's
receive window. Another sign of a stalled link is a report by NCCL's RAS service that all ranks are waiting in the same
collectives. If GPUs are 100% busy but draw only a fraction of their power limit, the collective's kernel is waiting for
data, or an earlier kernel never ends. For GPUs that communicate over PCIe, see also the diagnoses gpudirect-hindered
and nccl-known-bad.

Fix: End the job, and test the path between the two hosts by running `nccl-doctor check` with the names of both hosts.

References: sock_diag(7), struct tcp_info in include/uapi/linux/tcp.h; NCCL's guide, "RAS".
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD711", explains=("rank-behind", "collective-mismatch"))
