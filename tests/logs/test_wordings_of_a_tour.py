"""Words that people met and took for something else: each is named for what it is, with what mends it."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report

CASES = [
    ("train.py: error: unrecognized arguments: --local-rank=0", "launcher-env-missing", "passes --local-rank to rank 0", "torchrun"),
    ("train.py: error: unrecognized arguments: --local_rank=1", "launcher-env-missing", "does not accept it", "LOCAL_RANK"),
    ("ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
     "launcher-env-missing", "before init_process_group", "Call init_process_group first"),
    ("zsh: killed     python train.py", "killed", "killed from outside", "dmesg"),
    ("fish: Job 1, 'python train.py' terminated by signal SIGKILL (Forced quit)", "killed", "killed from outside", "dmesg"),
    ("ssh: connect to host node2 port 22: Connection refused", "ssh-unreachable", "it refused the connection", "Start sshd"),
    ("ssh: connect to host node2 port 22: Connection timed out", "ssh-unreachable", "it does not answer", "open its port"),
    ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
     "port-in-use", "It is not a port that the ranks use", "give the server another port"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.",
     "out-of-memory", "Host memory ran out", "--mem"),
    ("[c10d] The client socket has failed to connect to [localhost]:23456 (errno: 111 - Connection refused).",
     "connection-refused", "this address refers to each host itself", "Use the master's address"),
    ("AssertionError: --batch-size 63 must be multiple of CUDA device count 2",
     "script-failed", "batch size 63, which does not divide evenly among 2 GPUs", "Use batch size 62 or 64."),
    ("RuntimeError: makeDeviceForHostname(): unsupported gloo device",
     "gloo-ifname-invalid", "torch found no gloo transport", "Unset GLOO_DEVICE_TRANSPORT"),
    ("RuntimeError: [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:17",
     "hostname-loopback", "resolves to 127.x", "map the host's name to its real address"),
    ("RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'] and 1 unique IP addresses",
     "advertised-address-wrong", "several hosts give the same address", "SGLANG_HOST_IP for SGLang"),
    ("q1:12:12 [0] bootstrap.cc:38 NCCL WARN NET/Socket : No usable listening interface found",
     "ifname-no-match", "no interface in the subnet of the address in NCCL_COMM_ID", "Unset NCCL_COMM_ID"),
    ("q1:12:12 [0] misc/socket.cc:322 NCCL WARN Net : No interface found in the same subnet as remote address 10.9.8.7<5>",
     "ifname-no-match", "no interface in the subnet of the address in NCCL_COMM_ID", "Unset NCCL_COMM_ID"),
    ("q1:12:12 [0] bootstrap.cc:90 NCCL WARN no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME",
     "ifname-no-match", "NCCL_OOB_NET_IFNAME matches none", "Correct or unset NCCL_OOB_NET_IFNAME"),
    ("OSError: [Errno 99] Cannot assign requested address",
     "master-addr-not-local", "not available on its host (errno 99)", "localhost might resolve to ::1"),
    ("[W socket.cpp:426] [c10d] The server socket has failed to bind to 10.0.0.9:29500 (errno: 99 - Cannot assign",
     "master-addr-not-local", "should be the master", "Set MASTER_ADDR to an address of the host"),
    (("gpu1:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\ngpu2:1:2 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>\n"
     "gpu1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 172.17.0.1<4242> failed : Connection refused"),
     "wrong-interface", "A rank uses the address 172.17.0.1 (docker0 on gpu2), at which gpu1 can't", "NCCL_SOCKET_IFNAME"),
    (("gpu1:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
     "gpu1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 172.17.0.1<4242> failed : Connection refused"),
     "wrong-interface", "A rank uses the address 172.17.0.1, at which gpu1 can't", "NCCL_SOCKET_IFNAME"),
    (("gpu1:1:2 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>\ngpu2:1:2 [0] NCCL INFO Bootstrap: Using eth0:192.168.5.2<0>\n"
     "gpu1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 192.168.5.2<4242> failed : Connection timed out"),
     "wrong-interface", "eno1 (10.0.0.1) on gpu1 and eth0 (192.168.5.2) on gpu2, in different", "NCCL_SOCKET_IFNAME"),
    (("gpu1:1:2 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>\ngpu2:1:2 [0] NCCL INFO Bootstrap: Using eno1:172.20.0.2<0>\n"
     "gpu1:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 172.20.0.2<4242>"),
     "peer-died", "lost the connection", "Look for the first error"),
    (("[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
     "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"),
     "rendezvous-timeout", "Rank 3 waited in vain for rank 0 of its process group", "The store can be reached"),
    ("[rank1]: torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/rank_3",
     "rendezvous-timeout", "Rank 1 waited in vain for rank 3 of its process group", "The store can be reached"),
    (("[rank1]:[E1128 10:00:10 ProcessGroupNCCL.cpp:2268] [PG ID 3 PG GUID 9 Rank 1]  failure detected by watchdog at work "
     "sequence id: 1 PG status: last enqueued work: 1, last completed work: -1"),
     "collective-timeout", "Rank 1 waited in a collective", "or a rank has not called it"),
    (("[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, "
     "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n[rank3]:[E ProcessGroupNCCL.cpp:1484] "
     "[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from  rank 1"),
     "collective-timeout", "Rank 1 waited in a collective that timed out: rank 1 in ALLREDUCE number 6", "missing or late"),
    (("[rank3]:[E ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective "
     "timeout from  rank 1"), "collective-timeout", "Rank 1 reported a collective timeout to rank 3", "See what rank 3 did"),
    ("[rank7]:[E708 11:01:11 ProcessGroupNCCL.cpp:1413] [PG ID 0 Rank 7] Heartbeat monitor timed out!",
     "collective-timeout", "The NCCL watchdog thread of rank 7 is stuck", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    ("There are not enough slots available in the system to satisfy the 16 slots that were requested",
     "world-size-mismatch", "hosts have fewer slots", "-H gpu01:8,gpu02:8"),
    (("ValueError: You set `devices=8` in Lightning, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` "
     "does not match."), "world-size-mismatch", "differs from the tasks per node", "--ntasks-per-node"),
    ("AssertionError: train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 8 != 1 * 1 * 2",
     "world-size-mismatch", "train_batch_size in DeepSpeed's configuration", "gradient_accumulation_steps"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 1",
     "killed", "received SIGHUP", "nohup does not protect torchrun"),
    ("srun: error: Node failure on n1", "killed", "because n1 failed", "sinfo -R"),
    (("gpu1:1:2 [0] include/alloc.h:99 NCCL WARN Cuda failure 'invalid argument'\n"
     "gpu1:1:2 [0] include/alloc.h:70 NCCL WARN Failed to CUDA host alloc 33554432 bytes"), "cuda-error", "CUDA failed", "CUDA_LAUNCH_BLOCKING"),
    ("[ 4242.1] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
     "gpu-errors", "SXid 20034 of the NVSwitch 0000:05:00.0", "nvidia-fabricmanager"),
    ("gpu1:1:2 [0] misc/socket.cc:50 NCCL WARN socketFinalizeAccept: wrong magic 4854 != 1234",
     "nccl-unknown-error", "A peer that is not a rank of this job", "a port scanner"),
    ("n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed : Cannot assign requested address",
     "nccl-unknown-error", "could not bind a socket", "NCCL_COMM_ID"),
    ("n1:1:2 [0] misc/nvmlwrap.cc:70 NCCL WARN nvmlInit_v2() failed: Driver Not Loaded",
     "cuda-driver-mismatch", "is not loaded", "modprobe nvidia"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
     "cuda-error", "EXCLUSIVE_PROCESS", "nvidia-smi -c DEFAULT"),
    ("kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.2 port 22",
     "ssh-unreachable", "closed the connection before it sent its banner", "MaxStartups"),
    ("srun: error: Unable to allocate resources: Invalid account or account/partition combination specified",
     "step-not-started", "Invalid account", "sacctmgr"),
    ("srun: error: Unable to confirm allocation for job 77: Invalid job id specified",
     "step-not-started", "Invalid job id", "unset SLURM_JOB_ID"),
    (("srun: error: Task launch for StepId=77.0 failed on node n2: Communication connection failure\n"
     "srun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted"),
     "step-not-started", "failed on node n2", "SrunPortRange"),
    (("[W socket.cpp:663] [c10d] The client socket has failed to connect to [10.0.0.2]:29500 (errno: 101 - Network is "
     "unreachable).\ntorch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
     "(10.0.0.2, 29500)."), "no-route-to-host", "has no route to 10.0.0.2:29500", "ip route"),
    (("[0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n[1] NCCL INFO Bootstrap : Using flannel.1:10.244.1.0<0>\n"
     "[1] NCCL WARN socketStartConnect: Connect to 10.244.1.0<44017> failed : Connection timed out"),
     "wrong-interface", "NCCL uses docker0 (172.17.0.1) on a rank", "NCCL_SOCKET_IFNAME"),
    (("[rank2]:[E] ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective "
     "timeout from  rank 1 and we will try our best to dump the debug info.\n"
     "[rank2]:[E] ProcessGroupNCCL.cpp:683] [Rank 2] [PG ID 0 PG GUID 0(default_pg) Rank 2] Terminating the process after "
     "attempting to dump debug info, due to collective timeout or exception."),
     "collective-timeout", "Rank 1 reported a collective timeout to rank 2", "log of rank 1"),
    ("srun: error: Task launch for StepId=125452.4 failed on node n1: Unable to layout tasks on given cpus",
     "step-not-started", "Unable to layout tasks", "no more nodes, tasks, GPUs"),
    (("slurmstepd: error: pyxis: container start failed with error code: 1\n"
     "srun: error: Task launch for StepId=321.0 failed on node n1: Plugin initialization failed"),
     "container-start-failed", "container", ""),
    ("gpu-17: Permission denied (publickey,password).",
     "ssh-auth-failed", "no key was accepted", "authorized_keys there. Then see what the hosts say:"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "said", "mends"), CASES, ids=[case[0][:40] for case in CASES])
def test_it_is_named_for_what_it_is(line: str, name: str, said: str, mends: str) -> None:
    (found, *_) = report(diagnose([LogSource("log", [line.encode() + b"\n"])]), 0.1).diagnoses
    assert found.name == name
    assert said in found.message
    assert mends in found.fix.summary
