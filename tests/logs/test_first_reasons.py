"""What a log's own words name as the reason, where other words of it are louder, and what is harmless."""

from __future__ import annotations

import random

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.report import Report

CLOSED = (
    "[W822 03:54:{s}.64 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host head:29500 - retrying "
    "(try={n}, timeout=60000ms, delay=1103ms): failed to recv, got 0 bytes"
)
START = "{host}:4{r}2:4{r}2 [{r}] NCCL INFO ncclCommInitRank comm 0x7f{r} rank {r} nranks 2 cudaDev {r} busId 43000 commId 0x51 - Init START"
PLUGIN = "n1:412:412 [1] NCCL INFO NET/Plugin: Could not find: librccl-net.so. Using internal network plugin."
SOCKET = "n1:412:412 [1] NCCL INFO Using network Socket"
IOMMU = (
    'n1:402:402 [0] rccl/src/init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to hang!'
)
VERSION = "n1:402:402 [0] NCCL INFO NCCL version {}"
CUDA = "n1: Test NCCL failure common.cu:1005 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
SHARED = "n1:402:402 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"
TOPOLOGY = "NCCL_TOPO_FILE: /opt/xml/p5.xml\n[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n[rank0]: Attribute arch of node cpu not found"
NVML = "n1:402:402 [0] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found"
RAY = (
    "ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=40390, ip=10.42.7.19)\n"
    "ValueError: the batch has no rows"
)
LIBRARY = (
    "(VllmWorker rank=3 pid=4) ERROR 08-20 09:48:31 [pynccl_wrapper.py:229] Failed to load NCCL library from "
    "/opt/nccl/libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.\n"
    "[E820 09:53:31.201 socket.cpp:1023] [c10d] The client socket has timed out after 300000ms while trying to connect "
    "to (0.0.0.0, 51216)."
)
QP = "n1:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state {}, next state {}"
SHIM = "n1:1:1 [0] NCCL WARN NCCL/NET (shim) mismatch enforced: NCCL_IB_TC=104 (expected 52)"
LIBUV = "RuntimeError: use_libuv was requested but PyTorch was built without libuv support"
OVER_SHM = "n1:402:402 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
RAS = """\
Errors
  #0-0 (b8c5df6f1c1d3e2a) MISMATCH
    Communicator ranks have different AllReduce operation counts
    6 ranks have launched up to operation 6
    2 ranks have launched up to operation 5"""
RAS_STATUS = """\
  #0-0 (b8c5df6f1c1d3e2a) INCOMPLETE
    Communicator ranks have different status
    30 ranks have status RUNNING
    12 ranks have status ABORT"""
WATCHDOG = "[rank{0}]:[E ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=1800000) ran for 1800012 milliseconds before timing out."
TIMED_OUT = "\n".join(
    (
        "PyTorch version: 2.1.2+cu121",
        *(START.format(host="n1", r=r).replace("nranks 2", "nranks 3").replace("START", "COMPLETE") for r in range(3)),
        "[rank2]: step 5",
        *map(WATCHDOG.format, range(2)),
    )
)
MNNVL = "n1:1:2 [0] mnnvl.cc:60 NCCL WARN MNNVL (cliqueSize 64) is available but not working on this system. Check the IMEX channel"


def read(text: str | bytes) -> Report:
    data = text if isinstance(text, bytes) else f"{text}\n".encode()
    return report(diagnose([LogSource("run.log", [data])]), 0.1)


def begun(host: str = "n1") -> str:
    return "\n".join(START.format(host=host, r=r) for r in range(2))


CASES = {
    "a store that closes again and again": (
        "\n".join(CLOSED.format(s=40 + n, n=n) for n in range(3)), "proxy-intercepts", "accepted and closed at once", "service mesh",
    ),
    "a topology": (TOPOLOGY, "env-bad-value", "/opt/xml/p5.xml (NCCL_TOPO_FILE)", "must fit this NCCL"),
    "a library": (LIBRARY, "version-mismatch", "failed to load NCCL's library /opt/nccl/libnccl.so.2", "VLLM_NCCL_SO_PATH"),
    "NVML in a container": (f"{NVML}\nunhandled system error", "gpu-count-low", "can't see the GPU of another rank", "NCCL_HOSTID"),
    "kernels for another GPU": (f"{VERSION.format('2.25.1')}\n{SHARED}\n{CUDA}", "nccl-known-bad", "NCCL 2.25.1 does not support", "newer NCCL"),
    "MNNVL": (MNNVL, "gdr-p2p-fault", "IMEX channel", "/dev/nvidia-caps-imex-channels"),
    "a task of Ray": (RAY, "script-failed", "ValueError: the batch has no rows", "traceback"),
    "Ray's memory": ("(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)", "out-of-memory", "Host memory", "RAY_memory_usage_threshold"),
    "UCX": ("rcache.c:985  UCX  ERROR failed to insert region 0x1 [0x0..0x0]: Invalid parameter", "gdr-p2p-fault", "directly", "nvidia-peermem"),
    "one host that begins": (f"{begun()}\n{IOMMU}", "rendezvous-timeout", "All 2 ranks on n1 began to initialize NCCL, but none completed", "iommu=pt"),
    "a container that begins": (begun("0a1b2c3d4e5f"), "rendezvous-timeout", "All 2 ranks", "where the ranks hang (nccl-doctor hang with the job's hosts file"),
    "a partition key": (QP.format("RESET", "INIT"), "ib-fault", "no partition key at the index NCCL_IB_PKEY (22)", "nccl-doctor ifname"),
    "a GID": (QP.format("INIT", "RTR"), "ib-fault", "only one of the two GIDs contains an IPv4 address (22)", "nccl-doctor ifname"),
    "a plugin's variables": (SHIM, "plugin-fault", "NCCL_IB_TC=104 (expected 52)", "set_nccl_env.sh of gIB"),
    "libuv": (LIBUV, "libuv-missing", "built without libuv", "torchrun ignores USE_LIBUV"),
    "shared memory": (
        f"{begun().replace('START', 'COMPLETE')}\n{OVER_SHM}\n^C", "collective-timeout", "over shared memory",
        "nvidia-smi topo -p2p r). From NCCL 2.24 on, also try NCCL_CUMEM_HOST_ENABLE=0: if the job goes on then, NCCL's shared host memory",
    ),
    "ranks behind that RAS does not name": (RAS, "collective-timeout", "2 ranks launched AllReduce 5 times, while 6 ranks have 6.", "Look at what the first"),
    "a status of ranks that RAS does not name": (RAS_STATUS, "peer-died", "12 ranks have status ABORT, which the others have not.", "See on that host"),
    "a timeout before torch's flight recorder": (TIMED_OUT, "collective-timeout", ". Rank 2 reported no timeout: look there first.", "To see it next time, run py-spy dump on every rank"),
    "hosts of unequal size": (
        f"{VERSION.format('2.31.2')}\n" + "\n".join(START.format(host=h, r=r).replace("nranks 2", "nranks 3") for h, r in (("n1", 0), ("n1", 1), ("n2", 2))),
        "rendezvous-timeout", "log ends", "deadlocks at startup if hosts have different numbers of ranks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_named(name: str) -> None:
    text, diagnosis, said, mends = CASES[name]
    found = read(text).diagnoses[0]
    assert found.name == diagnosis
    assert said in found.message
    assert mends in found.fix.summary
    for word in ("Xid", "CUDA_LAUNCH_BLOCKING", "had exited", "firewall", "until the timeout", "A rank of"):
        assert word not in f"{found.message} {found.fix.summary}"


def test_one_closed_connection_is_the_end_of_the_other_process() -> None:
    assert [one.name for one in read(CLOSED.format(s=41, n=0)).diagnoses] == ["peer-died"]


HEALTHY = (
    f"{PLUGIN}\n{SOCKET}\n{IOMMU}\n{begun()}\n{begun().replace('START', 'COMPLETE')}\nstep 10 loss 2.31\ntraining done"
)


@pytest.mark.parametrize(
    "text", [HEALTHY, f"{HEALTHY.replace('training done', 'Training complete.')}", f"{SHARED}\n{HEALTHY}"]
)
def test_words_of_a_healthy_log_of_rccl_are_no_fault(text: str) -> None:
    assert read(text).diagnoses == ()


def test_bytes_are_not_read_as_a_log() -> None:
    found = read(random.Random(1).randbytes(300_000))
    assert (found.diagnoses, found.complete) == ((), False)
    assert [(row.outcome, row.text) for row in found.phases if row.name == "log"] == [
        ("unknown", "run.log was not read: it is not text")
    ]


def test_sentences_fit_one_rank_and_several() -> None:
    line = "[rank{}]: RuntimeError: [gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:31337: Connection refused"
    for ranks in (["1"], ["1", "2"]):
        found = read("\n".join(line.format(rank) for rank in ranks)).diagnoses[0]
        assert found.message.startswith("10.0.0.2:31337 refused a connection from rank")
