"""The ways between GPUs: shared memory, P2P, GPUDirect, InfiniBand and RoCE, plugins."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, benign, hint, likely, root, symptom

SHM_RULES: tuple[Rule, ...] = (
    root(
        "shm-exhausted",
        r"(?i:(?:shared memory|/dev/shm|\bshm|posix_fallocate|fallocate|/torch_\d).*no space left on device)",
        "n1:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
    ),
    root(
        "shm-exhausted",
        r"(?i:no space left on device.*(?:/dev/shm|shared memory|\bshm\b|/torch_\d))",
        "OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-x'",
    ),
    likely(
        "shm-exhausted",
        r"Error while creating shared memory segment",
        "n1:1:2 [3] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-7-1-2-3 "
        "(size 9637888)",
    ),
    root(
        "shm-exhausted",
        r"(?:failed to extend \S*shm|[Uu]nable to (?:write to file|mmap \d+ bytes from file|allocate shared memory)"
        r"|insufficient shared memory|out of shared memory)",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory.",
    ),
    likely(
        "shm-exhausted",
        r"(?:Bus error|SIGBUS|exitcode: -7\b|[Ss]ignal 7\b)",
        "Signal 7 (SIGBUS) received by PID 4242",
    ),
    root(
        "shm-attach-failed",
        r"(?:Error while attaching (?:to )?shared memory segment|Could not (?:map|open) \S*(?:shm|nccl)"
        r"|[Ff]ailed to attach .*shared memory)",
        "n1:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a1 "
        "(size 9637888)",
    ),
    root(
        "shm-attach-failed",
        r"(?:shm_open failed to open|shared memory \S+ failed, error|failed to create shared memory file"
        r"|failed to register host buffer).*"
        r"(?:No such file|Permission denied|Invalid argument|File exists|[Oo]peration not)",
        "n1:1:2 [0] misc/shmutils.cc:120 NCCL WARN unlink shared memory /dev/shm/nccl-a1 failed, error: No such file "
        "or directory",
    ),
    likely(
        "shm-attach-failed",
        r"WARN .*(?:shm_open failed|failure in mmap of|munmap of shared memory|failed to create shared memory"
        r"|Could not map)",
        "n1:1:2 [0] include/shm.h:60 NCCL WARN failure in mmap of nccl-shm-send-1 (size 4096) : Cannot allocate memory",
    ),
    hint(
        "shm-exhausted",
        r"INFO .*(?:fallocate: Failed to extend|cuMem host allocations do not appear)",
        "n1:1:2 [0] NCCL INFO fallocate: Failed to extend /dev/shm/nccl-a1 to 9637892 bytes, error: No space left - "
        "retrying",
    ),
)

P2P_RULES: tuple[Rule, ...] = (
    root(
        "gdr-p2p-fault",
        r"WARN .*(?:P2P is disabled between NVLINK|failed to peer with device|CUDA IPC handle|(?:cuda|hip)Ipc\w+ failed"
        r"|MNNVL .*not (?:working|supported))",
        "n1:1:2 [0] graph/paths.cc:320 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0.",
    ),
    root(
        "gdr-p2p-fault",
        r"WARN .*(?:ibv_reg_(?:dmabuf_)?mr\S* failed.*(?:Bad address|Operation not supported|[Ii]nvalid)"
        r"|\bgdr_\w+\(.*failed|GDRCOPY failure)",
        "n1:1:2 [0] misc/ibvwrap.cc:233 NCCL WARN Call to ibv_reg_mr failed with error Bad address",
    ),
    root(
        "gdr-p2p-fault",
        r"(?:cuIpc|cudaIpc|hipIpc|cuMemImport|cuMemExport)\w+.{0,60}(?:fail|error|invalid)",
        "RuntimeError: cudaIpcOpenMemHandle failed: invalid argument",
    ),
)

IB_RULES: tuple[Rule, ...] = (
    root(
        "gdr-p2p-fault",
        r"(?:UCX|ucp|uct).{0,80}(?:failed to register .{0,200}mem_type|ibv_reg_\w*mr\w*\(.{0,160}failed: (?:Bad address"
        r"|Invalid argument|Operation not supported))|failed to register address .{0,200}(?:cuda|mem_type)",
        "[1739.1] [gpu03:812 :0] ib_md.c:293 UCX ERROR ibv_reg_mr(address=0x7f2a, length=8192, access=0xf) failed: "
        "Bad address",
    ),
    root(
        "memlock-low",
        r"(?:ibv_(?:reg_mr|reg_dmabuf_mr|create_qp|create_cq|alloc_pd|open_device)\w*.*(?:Cannot allocate memory"
        r"|errno ?:? ?12\b|ENOMEM))",
        "n1:1:2 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    hint(
        "memlock-low",
        r"(?:RLIMIT_MEMLOCK|max(?:imum)? locked memory|only allow registering part of your physical"
        r"|memlock.{0,30}(?:too (?:low|small)|limit))",
        "WARNING: It appears that your OpenFabrics subsystem is configured to only allow registering part of your "
        "physical memory.",
    ),
    symptom(
        "ib-fault",
        r"Got completion .*(?:with error 5,|status=5 |status=IBV_WC_WR_FLUSH_ERR)",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 5, "
        "opcode 1, len 0, vendor err 249",
    ),
    root(
        "collective-mismatch",
        r"collective mismatch error|posted incorrect receive info",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : req 0/1 tag 1 peer 10.0.0.2<4> collective mismatch "
        "error, local size 4 remote size 8",
    ),
    root(
        "collective-mismatch",
        r"NET/Socket ?: .*message truncated ?: receiving",
        "n1:1:2 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.2<4> message truncated : "
        "receiving 8 bytes instead of 4",
    ),
    root(
        "ib-fault",
        r"Got completion (?:from peer )?.*(?:with (?:error|status)|status ?=)",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, "
        "opcode 1, len 0, vendor err 129",
    ),
    root(
        "ib-fault",
        r"NET/IB.*(?:async (?:fatal|error) event|Got async (?:error )?event|Got CQE with error|marked as failed"
        r"|error is fatal)",
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    ),
    hint(
        "ib-fault",
        r"NET/IB.*(?:GID table changed|non-fatal async event)",
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 GID table changed",
    ),
    root(
        "ib-fault",
        r"WARN .*(?:Call to ibv_\w+(?:\(\))? (?:failed|returned)|ibv_post_(?:send|recv)\(\) failed)",
        "n1:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
    ),
    root(
        "ib-fault",
        r"WARN .*(?:incompatible devices|device is incompatible with|different link_layer|different number of devices"
        r"|mlx5dv_\w+ failed)",
        "n1:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Attempted to connect incompatible devices: "
        "[0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE.",
    ),
    root(
        "ib-fault",
        r"WARN .*NET/IB.*[Uu]nable to (?:open|query|allocate)",
        "n1:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Unable to open device mlx5_0",
    ),
    root(
        "ib-fault",
        r"(?i:transport retry count(?:er)? exceeded|RNR retry|failed to create (?:a )?queue pair"
        r"|[Ll]ocal QP operation err)",
        "ib_mlx5_log.c:171 Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
    ),
    root(
        "ib-fault",
        r"WARN .*Detected mixed local (?:Net|CollNet) device counts",
        "n1:1:2 [0] init.cc:1200 NCCL WARN Detected mixed local Net device counts across ranks (min 4, max 8). Set "
        "NCCL_IGNORE_NET_MISMATCH=1 to continue.",
    ),
)

PLUGIN_RULES: tuple[Rule, ...] = (
    benign(
        r"NET/OFI .{0,80}ncclGetVersion",
        "n1:1:2 [0] NCCL WARN NET/OFI Failed to find ncclGetVersion symbol, can not get NCCL version",
    ),
    hint(
        "plugin-fault",
        r"INFO NET/Plugin ?: ?(?:Could not find: |Plugin load \(|No plugin found \(|Failed to (?:load|open) )\S",
        "n1:1:2 [0] NCCL INFO NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so. Using internal plugin.",
        unless=r"(?:find: |\(|load |open )(?:\S*/)?(?:libnccl-net\.so|none)",
    ),
    likely(
        "plugin-fault",
        r"\bOFI (?:call|plugin|fi_\w+).{0,60}(?:fail|error)|[Nn]o OFI NICs? found"
        r"|nccl_net_ofi_\w+.{0,60}(?:fail|error)",
        "gpu-03: [1] WARN: OFI call failed with RC -22, Invalid argument",
    ),
    benign(
        r"WARN NET/OFI (?:Failed to open libcudart|.*(?:using default|not set|Setting ))",
        "n1:1:2 [0] configure_x:9 NCCL WARN NET/OFI Failed to open libcudart.so",
    ),
    benign(
        r"fastsocket\S* NCCL WARN (?:Cannot get incoming CPU|Maximum retry reached for)",
        "n1:1:2 [0] net_fastsocket.cc:765 NCCL WARN Cannot get incoming CPU.",
    ),
    likely(
        "plugin-fault",
        r"(?:tcpx|TCPX|fastrak|FASTRAK)\w*\(.*NCCL WARN ",
        "[0] tcpxResult_t tcpxCommProgress(tcpxComm*):1231 NCCL WARN 0xad:0xae, nic 0, rx ctrl timeout",
    ),
    root(
        "plugin-fault",
        r"NET/OFI .*(?:completed with error|Unresponsive receiver|fi_\w+(?:\(\))? (?:call )?failed|RC: -?\d+)",
        "n1:1:2 [0] ofi_process_cq:1077 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 "
        "(Unresponsive receiver)",
    ),
    likely(
        "plugin-fault",
        r"WARN NET/OFI ",
        "n1:1:2 [0] nccl_net_ofi_init:1444 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
    ),
    likely(
        "plugin-fault",
        r"SHARP coll init error|Cannot create SHARP job|sharp_coll_init failed",
        "n1:1:2 [0] sharp_plugin.c:352 NCCL WARN NET/IB :SHARP coll init error: Cannot create SHARP job(-11)",
    ),
    root(
        "plugin-fault",
        r"(?:Failed to initialize any NET plugin|Error ?: network .* not found"
        r")",
        "n1:1:2 [0] init.cc:700 NCCL WARN Error: network AWS Libfabric not found.",
    ),
    likely(
        "plugin-fault",
        r"WARN .*NET/(?:FasTrak|FASTRAK|gIB|GIB|TCPX|GPUDirectTCPX|UCX|AWS|Libfabric|MLX5|SHARP|DLINFER|HPC)\b",
        "n1:1:2 [0] x.cc:1 NCCL WARN NET/FasTrak plugin: failed to connect to the receive manager",
    ),
    root(
        "plugin-fault",
        r"(?:libnccl-net|libnccl_net|librccl-net|aws-ofi-nccl)\S*.{0,60}(?:undefined symbol|version .* not found"
        r"|[Ss]egmentation)",
        "/opt/amazon/lib/libnccl-net.so: undefined symbol: fi_getinfo",
    ),
    likely(
        "plugin-fault",
        r"(?:libfabric|EFA|efa).{0,80}(?:fi_\w+ failed|Unresponsive receiver|provider .* (?:error|failed)"
        r"|[Uu]nreachable remote)",
        "libfabric:77:1:efa:cq:efa_rdm: Libfabric EFA provider has encountered an internal error: Unresponsive "
        "receiver",
    ),
)

RULES = (*SHM_RULES, *P2P_RULES, *IB_RULES, *PLUGIN_RULES)
