"""What a log shows of each fault that ``check`` finds: the diagnosis that its words get, or why it has no words.

A fault of the network has no line of its own: NCCL, torch and gloo print the errno of the connection that failed.
"""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import signs
from nccl_doctor.model.register import all_checks

TIMED_OUT = "n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : Connection timed out"
NO_ROUTE = (
    "n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : No route to host"
)
REFUSED = (
    "n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : Connection refused"
)
CLOSED = (
    "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Net : Call to recv from 10.0.0.2<4242> failed : Connection reset by peer"
)
WAITED = (
    "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.2, 29500)."
)
STOOD = (
    "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
NO_INTERFACE = "n1:1:2 [0] bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found"
RDMA = "n1:1:2 [0] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<51161> with status=12 opcode=0 len=0 vendor err 129"
FACES: dict[str, tuple[str, str]] = {
    "python-missing": ("script-failed", "gpu02: bash: line 1: python3: command not found"),
    "master-addr-loopback": ("connection-refused", REFUSED),
    "ifname-wrong-interface": ("connection-timed-out", TIMED_OUT),
    "ifname-needed": ("connection-timed-out", TIMED_OUT),
    "ifname-ambiguous": ("connection-timed-out", TIMED_OUT),
    "ifname-model-differs": ("ifname-no-match", NO_INTERFACE),
    "interface-down": ("ifname-no-match", NO_INTERFACE),
    "shared-subnet-nics": ("connection-timed-out", TIMED_OUT),
    "mtu-mismatch": ("collective-timeout", STOOD),
    "mtu-blackhole": ("collective-timeout", STOOD),
    "route-missing": ("no-route-to-host", NO_ROUTE),
    "route-diverted": ("connection-timed-out", TIMED_OUT),
    "reverse-path-filtered": ("connection-timed-out", TIMED_OUT),
    "duplicate-address": ("connection-refused", REFUSED),
    "firewall-blocks-port": ("rendezvous-timeout", WAITED),
    "firewall-blocks-ephemeral": ("no-route-to-host", NO_ROUTE),
    "network-policy-blocks": ("connection-timed-out", TIMED_OUT),
    "port-unreachable": ("connection-timed-out", TIMED_OUT),
    "port-in-ephemeral-range": ("port-in-use", "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use"),
    "proxy-intercepts": ("peer-died", CLOSED),
    "rdma-pair-unreachable": ("ib-fault", RDMA),
    "rdma-gid-missing": ("ib-fault", "n1:1:2 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22"),
    "rdma-mismatch": ("ib-fault", RDMA),
    "gpu-overlap": ("duplicate-gpu", "n1:1:2 [0] init.cc:775 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"),
    "gpu-in-use": ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    "gpu-driver-down": ("cuda-driver-mismatch", "n1:1:2 [0] misc/nvmlwrap.cc:70 NCCL WARN nvmlInit_v2() failed: Driver Not Loaded"),
    "code-mismatch": ("collective-mismatch", "n1:9:9 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.2<4> message truncated : receiving 2048 bytes instead of 1024"),
    "nccl-installed-twice": ("version-mismatch", "ImportError: libtorch_cuda.so: undefined symbol: ncclMemFree"),
    "stale-process": ("port-in-use", "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use"),
    "shm-small": ("shm-exhausted", "n1:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
    "step-limits-low": ("memlock-low", "n1:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    "allreduce-timeout": ("collective-timeout", STOOD),
    "allreduce-failed": ("script-failed", "[rank1]: ValueError: bad shape"),
}  # fmt: skip

SILENT = {
    "allreduce-slow": "a slow run prints no fault",
    "clock-skew": "no program compares the hosts' clocks",
    "container-differs": "its faults have the words of what is missing inside",
    "node-missing": "the job never starts: its rank is not there, and node 0 waits (rendezvous-timeout)",
    "container-unreachable": "the job never starts: the container runtime's own words",
    "env-unknown-variable": "NCCL says nothing of a name that it does not know",
    "host-listed-twice": "a fault of the list of hosts, which no rank prints",
    "job-variable-conflict": "the job runs, with another value",
    "login-environment-differs": "its faults have the words of what the login lacks",
    "pod-not-ready": "the job never starts",
    "pod-unreachable": "the job never starts",
    "probe-failed": "it is about this tool alone",
    "rdma-device-inaccessible": "NCCL goes on over sockets; an INFO line names no fault",
    "rdma-hca-no-match": "NCCL goes on over sockets, with the INFO line of a host without RDMA",
    "rdma-link-slow": "a slow run prints no fault",
    "round-trip-long": "a slow run prints no fault",
    "temporary-noexec": "torch.compile's ImportError is the script's own",
    "transport-fallback": "NCCL goes on, with INFO lines alone",
}


def test_every_fault_has_a_face_or_a_reason_for_none() -> None:
    live = {check.name for check in all_checks() if check.function}
    assert live - signs().keys() <= FACES.keys() | SILENT.keys()
    assert not FACES.keys() & SILENT.keys()
    assert FACES.keys() | SILENT.keys() <= live


@pytest.mark.parametrize("name", FACES)
def test_its_words_are_read(name: str) -> None:
    diagnosis, line = FACES[name]
    assert [one.name for one in diagnose([LogSource("run.log", [f"{line}\n".encode()])]).causes] == [diagnosis]
