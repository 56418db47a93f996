"""Data between two ranks is retransmitted again and again, and never acknowledged.

What it means: the ranks agree on what to do, but the network between two of their hosts does not deliver the data. The
cause may be a firewall rule added while the job was running, a cable, a switch, a network card, or a peer that has lost
its address.

How we know: the kernel's socket tables on both hosts (sock_diag(7)) twice showed the same bytes written but not
acknowledged, with retransmissions that went unanswered. Or NCCL's RAS reports that all ranks have launched the same
collectives and are waiting in them. If GPUs are 100 % busy meanwhile but draw only a fraction of their power limit, the
collective's kernel is busy-waiting for data (between GPUs on PCIe, see gpudirect-hindered and nccl-known-bad), or an
earlier kernel never ends, which looks the same from outside.

Fix: After ending the job, test the path between the two hosts with `nccl-doctor check` and the names of both.

References: sock_diag(7), struct tcp_info in include/uapi/linux/tcp.h; NCCL's guide, "RAS".
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD711", explains=("rank-behind", "collective-mismatch"))
