"""RDMA over InfiniBand or RoCE failed.

What it means: A queue pair could not be made or a transfer was not acknowledged: link, GID index, VLAN, MTU, flow
control, or the other side had ended.

How we know: "NET/IB: Got completion from peer … with status=12 … vendor err 129". Status 12: no acknowledgement; 4:
local memory that the adapter may not read; 10: the other side's memory is gone; 5 only follows from an earlier error.
"Call to ibv_modify_qp failed" with 22 is the GID index, with 110 a peer that is not reached; asynchronous events tell
of links that went down.

Fix: ib_write_bw between the two hosts, ibstat or ethtool for the link. RoCE: unset NCCL_IB_GID_INDEX from NCCL 2.21
on, set it before. Restrict NCCL_IB_HCA to adapters of one kind.

References: NCCL's src/transport/net_ib.cc; infiniband/verbs.h (ibv_wc_status).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD910", explains=("cuda-error", "gdr-p2p-fault"))
