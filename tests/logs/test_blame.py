"""What is blamed when a log shows several faults."""

from __future__ import annotations

from functools import cache

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.log import Cause
from nccl_doctor.logs.signs import Case, rules, signs
from nccl_doctor.model.register import all_checks

CLOSED = "n2:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer n1<4242>"
WATCHDOG = (
    "[rank{0}]:[E425 00:40:12.3 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds"
)
REFUSED_BY_STORE = (
    "[W socket.cpp:558] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused)."
)
TIMED_OUT = (
    "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500)."
)
RETRY = "n1:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying"
COMPLETE = "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE"
LOOPBACK = "n1:1:2 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>"
OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory."
BIND = "n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed: Address already in use"
HEARTBEAT = (
    "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n7_18_0' has failed to send a keep-alive "
    "heartbeat to the rendezvous 'none' due to an error of type RendezvousConnectionError."
)
IB = "n1:1:2 [0] misc/ibvwrap.cc:119 NCCL WARN Call to ibv_create_qp failed"
MEMLOCK = "n1:1:2 [0] misc/ibvwrap.cc:99 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
REFUSED_BY_CLIENT = (
    "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying (try=0, "
    "timeout=600000ms, delay=1ms): Connection refused"
)
RAS = "n1:1:2 [0] NCCL INFO RAS failed to establish a client listening socket at 127.0.0.1<28028>"
BARRIER = "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: k (world_size=8, worker_count={})"
TO_LOOPBACK = "n1:1:2 [0] NCCL WARN socketStartConnect: Connect to 127.0.0.1<41000> failed : Connection refused"
TO_LINK_LOCAL = "n1:1:2 [0] NCCL WARN socketStartConnect: Connect to fe80::5%ib1<41000> failed : Connection timed out"


def names(*lines: str) -> list[str]:
    return [cause.name for cause in diagnose([LogSource("run.log", ["\n".join([*lines, ""]).encode()])]).causes]


SHAPES = "RuntimeError: The size of tensor a (32) must match the size of tensor b (16) at non-singleton dimension 0"
EXITED = (
    "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: p"
)
RAISED = "[rank1]: IndexError: list index out of range"
RETURNED = "n2:1:2 [0] NCCL INFO misc/socket.cc:567 -> 2"
STORE_GONE = (
    "[rank1]:[W1104 10:41:01.12 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4, addr=[n2]:51234, "
    "remote=[n1]:29500): Connection reset by peer"
)
TORN = "n2:1:2 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE"
TABLE = "#  Rank  0 Group  0 Pid    798 on       {} device  0 [0x0f] NVIDIA H800"
SUMMARY = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "train.py FAILED",
    "Failures:",
    "  host      : n1",
    "  rank      : 5 (local_rank: 1)",
    "  exitcode  : -15 (pid: 78)",
    "Root Cause (first observed failure):",
    "  host      : n2",
    "  rank      : 3 (local_rank: 3)",
]
PDSH = "pdsh@gpu01: gpu02: ssh exited with exit code {}"
REFUSED_KEY = "gpu02: root@gpu02: Permission denied (publickey)."
RAY = "(RayWorkerWrapper pid=1355, ip=192.0.2.8) "
PROXY = "Proxy Call to rank 7 failed (Connect)"  # in NCCL's catalogue, and in no rule


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ([CLOSED, CLOSED, OOM], ["out-of-memory"]),
        ([WATCHDOG.format(1, 7), CLOSED], ["collective-timeout"]),
        ([REFUSED_BY_STORE, TIMED_OUT], ["connection-refused"]),
        ([REFUSED_BY_STORE, OOM], ["out-of-memory"]),
        ([REFUSED_BY_STORE, "step 1", "step 2", "step 3", "step 4"], []),
        ([REFUSED_BY_STORE, REFUSED_BY_STORE], ["connection-refused"]),
        ([REFUSED_BY_STORE, *map(str, range(9)), WATCHDOG.format(1, 7)], ["collective-timeout"]),
        ([RETRY, COMPLETE, *map(str, range(9)), CLOSED], ["peer-died"]),
        ([RETRY, COMPLETE], []),
        ([LOOPBACK, TO_LOOPBACK], ["wrong-interface"]),
        ([LOOPBACK], []),
        ([LOOPBACK, LOOPBACK.replace("n1", "n2")], ["wrong-interface"]),
        ([TO_LINK_LOCAL], ["wrong-interface"]),
        ([BIND], ["ephemeral-ports-few"]),
        ([BIND, RAS], []),
        ([BARRIER.format(4)], ["rendezvous-timeout"]),
        ([BARRIER.format(16)], ["world-size-mismatch"]),
        ([WATCHDOG.format(0, 7), WATCHDOG.format(1, 7).replace("ALLREDUCE", "BROADCAST")], ["collective-mismatch"]),
        ([WATCHDOG.format(0, 7), WATCHDOG.format(1, 7).replace("NumelIn=8", "NumelIn=9")], ["collective-mismatch"]),
        ([WATCHDOG.format(0, 7), WATCHDOG.format(1, 8)], ["collective-timeout"]),
        ([HEARTBEAT], ["peer-died"]),
        ([IB, MEMLOCK], ["memlock-low"]),
        ([REFUSED_BY_CLIENT], ["connection-refused"]),
        ([SHAPES, CLOSED], ["script-failed"]),
        ([RAISED, WATCHDOG.format(0, 7)], ["script-failed"]),
        ([RAISED, OOM], ["out-of-memory"]),
        ([CLOSED, EXITED], ["peer-died"]),
        ([RETRY, EXITED], ["connection-refused"]),
        ([EXITED], ["script-failed"]),
        (["KeyError: 'model'", EXITED], ["script-failed"]),
        (["KeyError: 'model'", "tried again", "step 1"], []),
        ([RETURNED], ["connection-timed-out"]),
        ([STORE_GONE, TORN], ["peer-died"]),
        ([TORN, STORE_GONE], []),
        ([RAY + "ncclInternalError: Internal check failed.", RAY + "Last error:", RAY + PROXY], ["peer-died"]),
        (["torchrun: error: argument --nnodes: expected one argument"], ["launch-line-wrong"]),
        (
            ["gpu02: launch.py: error: argument --master_addr: expected one argument", PDSH.format(2)],
            ["launch-line-wrong"],
        ),
        (["train.py: error: unrecognized arguments: --epoch=3", EXITED], ["script-failed"]),
        (["train.py: error: unrecognized arguments: --local-rank=0", EXITED], ["launcher-env-missing"]),
        ([PDSH.format(2)], ["script-failed"]),
        ([PDSH.format(255)], ["ssh-unreachable"]),
        ([REFUSED_KEY, PDSH.format(255)], ["ssh-auth-failed"]),
        (["RuntimeError: Using hostfile at h but host=192.0.2.3 was not reachable via ssh. If"], ["ssh-unreachable"]),
        (
            ["Abort(1) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error"],
            ["launcher-env-missing"],
        ),
        ([TABLE.format("n1"), TABLE.format("n2")], ["world-size-mismatch"]),
        ([TABLE.format("n1"), "# Avg bus bandwidth    : 4.5", TABLE.format("n2"), "# Avg bus bandwidth    : 4.5"], []),
        ([SUMMARY[0]], ["script-failed"]),
        ([*SUMMARY, "  exitcode  : 1 (pid: 77)"], ["script-failed"]),
        ([*SUMMARY, "  exitcode  : -9 (pid: 77)"], ["killed"]),
        ([*SUMMARY, "  exitcode  : 137 (pid: 77)"], ["killed"]),
        ([OOM, *SUMMARY, "  exitcode  : 1 (pid: 77)"], ["out-of-memory"]),
        (["mpirun detected that one or more", "  Process name: [[4,1],3]", "  Exit code:    1"], ["script-failed"]),
        (["=   PID 812 RUNNING AT gpu02", "=   EXIT CODE: 1"], ["script-failed"]),
        (["=   PID 812 RUNNING AT gpu02", "=   KILLED BY SIGNAL: 9 (Killed)"], ["killed"]),
        (["MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD"], ["script-failed"]),
        (["[rank: 1] Child process with PID 8 terminated with code 1. Forcefully terminating"], ["script-failed"]),
        (["srun: error: Node failure on gpu02"], ["killed"]),
        (
            ["srun: error: Unable to create step for job 7: Memory required by task is not available"],
            ["step-not-started"],
        ),
        (["gpu02: bash: line 1: torchrun: command not found"], ["script-failed"]),
        (["train.sh: line 3: ibstat: command not found", "step 1", "step 2", "step 3"], []),
        (["train.sh: line 3: ./run.sh: command not found"], ["script-failed"]),
        (["./all_reduce_perf: error while loading shared libraries: libmpi.so.40: cannot open"], ["script-failed"]),
        (["There are no allocated resources for the application:", "  ./all_reduce_perf"], ["launch-line-wrong"]),
        (["Rank 0 scheduler died. The exit code is -9"], ["killed"]),
        (
            ["RuntimeError: Rank 0 scheduler died (exit code: 1). If exit code is -9 (SIGKILL), a common"],
            ["script-failed"],
        ),
        (["RuntimeError: Version mismatch: The cluster was started with:", "    Ray: 2.9.0"], ["version-mismatch"]),
        (
            ["ValueError: Tensor parallel size (16) cannot be larger than the number of available GPUs (8)."],
            ["gpu-count-low"],
        ),
        (["[12.3] Memory cgroup out of memory: Killed process 4242 (python)"], ["out-of-memory"]),
        (["[12.3] NVRM: API mismatch: the client has the version 550.54.15, but"], ["cuda-driver-mismatch"]),
        (["[12.3] python[4242]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so"], ["killed"]),
        ([OOM, "n9: Permission denied (publickey)."], ["out-of-memory", "ssh-auth-failed"]),
    ],
)
def test_blame(lines: list[str], wanted: list[str]) -> None:
    assert names(*lines) == wanted


def test_an_exception_is_told_before_the_exit_code_that_follows_it() -> None:
    said = f"{EXITED}\nmine.OddException: no such shard\n"
    verdict = diagnose([LogSource("run.log", [said.encode()])])
    words = signs()[verdict.causes[0].name].advice(Case(verdict.causes[0], verdict.log))
    assert words.message == "The script itself failed on a rank: mine.OddException: no such shard"


def test_a_return_code_behind_its_reason_is_no_consequence() -> None:
    (cause,) = diagnose([LogSource("run.log", [f"{OOM}\n{CLOSED}\n{RETURNED}\n".encode()])]).causes
    assert [name for name, _ in cause.follows] == ["peer-died"]


def test_the_earlier_time_is_blamed_over_the_earlier_file() -> None:
    late = b"2025-01-01T10:00:09Z [rank1]: RuntimeError: CUDA error: device-side assert triggered\n"
    early = b"2025-01-01T10:00:02Z [rank2]: OSError: [Errno 24] Too many open files\n"
    verdict = diagnose([LogSource("rank1.log", [late]), LogSource("rank2.log", [early])])
    assert verdict.causes[0].name == "nofile-low"


def test_the_address_in_a_prefix_is_that_of_the_process_itself() -> None:
    said = f"{RAY}RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error\n"
    verdict = diagnose([LogSource("run.log", [said.encode()])])
    words = signs()[verdict.causes[0].name].advice(Case(verdict.causes[0], verdict.log))
    assert words.message.startswith("gloo connected to a loopback address instead of another host")


def test_the_first_to_fail_stands_at_the_end_of_a_summary() -> None:
    said = "\n".join([*SUMMARY, "  exitcode  : 1 (pid: 77)", ""])
    (cause,) = (verdict := diagnose([LogSource("run.log", [said.encode()])])).causes
    words = signs()[cause.name].advice(Case(cause, verdict.log))
    assert words.message == "rank 3 on n2 ended with exit code 1, and the log does not show why."


@pytest.mark.parametrize(
    "line",
    [
        "mpirun noticed that process rank 3 with PID 4242 on node gpu02 exited on signal 9 (Killed).",
        "pdsh@gpu01: gpu02: ssh exited with exit code 1",
        "=   PID 812 RUNNING AT gpu02\n=   EXIT CODE: 1",
        "srun: error: gpu02: task 1: Exited with exit code 2",
    ],
)
def test_the_host_that_a_launcher_names(line: str) -> None:
    (cause,) = (verdict := diagnose([LogSource("run.log", [f"{line}\n".encode()])])).causes
    assert Case(cause, verdict.log).hosts == ("gpu02",)


LOST = "[rank{}]: RuntimeError: [gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.7]:7604."
WAITED = "[rank{}]: RuntimeError: [gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation"


@pytest.mark.parametrize(("waited", "wanted"), [((2, 3), "collective-timeout"), ((2,), "peer-died"), ((), "peer-died")])
def test_if_all_ranks_lost_others_or_gave_up_the_first_gave_up(waited: tuple[int, ...], wanted: str) -> None:
    """Rank 3 may have died without a word."""
    logs = [LogSource("n1.log", ["".join(f"{LOST.format(rank)}\n" for rank in (0, 1)).encode()])]
    last = "[rank3]: step 9" if 3 not in waited else ""
    told = [*(WAITED.format(rank) for rank in waited), last, "comm 0x5 rank 0 nranks 4 - Init COMPLETE"]
    logs.append(LogSource("n2.log", ["\n".join([*told, ""]).encode()]))
    assert diagnose(logs).causes[0].name == wanted


def test_a_launcher_that_waits_for_others_at_the_end_is_no_rendezvous() -> None:
    said = "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /x/torchelastic/agent/terminal_state/l"
    assert names("done 0", said) == []
    assert names(said, OOM) == ["out-of-memory"]


def test_a_barrier_names_all_ranks_that_were_late() -> None:
    said = "RuntimeError: [Rank 0]: Ranks 2, 3, 7 failed to pass monitoredBarrier in 10000 ms\n"
    (cause,) = (verdict := diagnose([LogSource("run.log", [said.encode()])])).causes
    words = signs()[cause.name].advice(Case(cause, verdict.log))
    assert words.message == "Ranks 2-3,7 did not reach a barrier in time, while the other ranks waited in it."


def test_at_most_three() -> None:
    faults = [
        OOM,
        "n9: Permission denied (publickey).",
        "OSError: [Errno 24] Too many open files",
        "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found",
        "KeyError: 'LOCAL_RANK'",
    ]
    assert len(names(*faults)) == 3


EDGES = [
    (check.name, effect)
    for check in all_checks()
    for effect in (*check.explains, *check.in_logs)
    if {check.name, effect} <= {rule.name for rule in rules()}
]


@pytest.mark.parametrize(("cause", "effect"), EDGES, ids=[f"{cause}-{effect}" for cause, effect in EDGES])
def test_every_edge_between_diagnoses_of_logs_folds_the_one_under_the_other(cause: str, effect: str) -> None:
    assert any(
        effect in follows(first, second) for first in samples(cause) for second in samples(effect) if first != second
    )


def samples(name: str) -> list[str]:
    """Lines that show a diagnosis alone."""
    return [
        rule.sample for rule in rules() if rule.name == name and [each.name for each in verdict(rule.sample)] == [name]
    ]


@cache
def verdict(text: str) -> tuple[Cause, ...]:
    return diagnose([LogSource("run.log", [text.encode() + b"\n"])]).causes


def follows(first: str, second: str) -> set[str]:
    """What stands under the cause that the first line shows, where both lines stand in one log."""
    cause = verdict(first)[0].name
    found = verdict(f"{first}\n{second}")
    return {name for name, _ in found[0].follows} if found and found[0].name == cause else set()


def test_a_name_that_was_asked_for_until_the_end_is_unknown() -> None:
    asked = (
        "[W1122 22:41:14.8 socket.cpp:764] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai "
        "error: -2 - Name or service not known)."
    )
    assert names(*[asked] * 5, TIMED_OUT)[0] == "hostname-unresolvable"
    assert names(asked, TIMED_OUT)[0] == "rendezvous-timeout"
    assert names(*[asked] * 5, REFUSED_BY_STORE, TIMED_OUT)[0] != "hostname-unresolvable"
    assert names(*[asked] * 5, TIMED_OUT.replace("n1", "n2"))[0] == "rendezvous-timeout"
    assert names(*[asked] * 5, "step 1") == []


def test_ranks_that_had_met_at_loopback_are_on_one_host_and_its_name_is_no_fault() -> None:
    lost = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19887."
    refused = (
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
        "Connection refused, remote=[127.0.0.1]:9630$0"
    )
    assert names("[rank1]: Traceback (most recent call last):", RAISED, lost, EXITED, refused) == ["script-failed"]
    assert names(refused, lost)[0] == "hostname-loopback"
