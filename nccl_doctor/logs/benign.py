"""Lines that look like faults and are none, whatever wording fits them."""

from __future__ import annotations

from nccl_doctor.logs.rule import LogRule, benign
from nccl_doctor.logs.wordings import C10D_CLIENT

BENIGN: tuple[LogRule, ...] = (
    benign(r"NCCL DIAG (?:\[OK\]|=== )", "n1:4242 NCCL DIAG [OK] ECC: no errors on 16 ranks"),
    benign(
        r"errno: 97 - ",
        "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [head]:29500 (errno: 97 - "
        "Address family not supported by protocol).",
    ),
    benign(
        C10D_CLIENT + r"errno: (?:99|101) - ",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 101 - Network is "
        "unreachable).",
    ),
    # events of a subnet manager at work, as ibv_event_type_str names them; transfers go on after them
    benign(
        r"NET/IB ?: .{0,40}Got async event : (?:client reregistration|port active|SM change|LID change|P_Key change)",
        "n1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration",
    ),
    benign(
        r"NCCL INFO .*Cuda failure",
        "n1:1:2 [0] NCCL INFO misc/cudawrap.cc:36 Cuda failure 'initialization error'",
    ),
    benign(
        r"NET/OFI .{0,80}ncclGetVersion",
        "n1:1:2 [0] NCCL WARN NET/OFI Failed to find ncclGetVersion symbol, can not get NCCL version",
    ),
    benign(
        r"WARN NET/OFI (?:Failed to open libcudart|.*(?:using default|not set|Setting ))",
        "n1:1:2 [0] configure_x:9 NCCL WARN NET/OFI Failed to open libcudart.so",
    ),
    benign(
        r"fastsocket\S* NCCL WARN (?:Cannot get incoming CPU|Maximum retry reached for)",
        "n1:1:2 [0] net_fastsocket.cc:765 NCCL WARN Cannot get incoming CPU.",
    ),
    benign(
        r"WARN .*(?:Missing \"?(?:iommu=|amd_iommu)|NUMA auto balancing enabled|HSA_FORCE_FINE_GRAIN_PCIE)",
        'n1:1:2 [0] init.cc:1 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
        "instablity or hang!",
    ),
    benign(
        r"INFO .*\[Service thread\] Connection closed by localRank",
        "n1:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
    ),
)
