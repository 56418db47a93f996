"""The guides that people work from today, situation by situation: what they say or see, and what the tool says to it.

Five ways of working: YOLOv5 on several machines with torch.distributed.launch; notes on DDP and DataParallel (env://,
tcp://, Slurm); Ultralytics' guide for several GPUs; HRNet's bottom-up pose estimation (mp.spawn with a dist-url); and
YOLOv5's DDP code read closely (the choice of a backend, the ring's time). Each row is one message or command of theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.facts import facts_of
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.report import AllReduceReport, Report
from nccl_doctor.report.render import RenderOptions, render
from nccl_doctor.report.smoke import smoke
from nccl_doctor.report.text import Screen, painter
from tests.checks.snapshots import load
from tests.cli.program import run
from tests.collect.plans import everywhere, gpus, planned

PLAIN = Screen(painter(color=False))
CHECKS = Path(__file__).parent / "checks"
YOLO, DDP, ULTRALYTICS, HRNET, CLOSELY = "YOLOv5", "DDP notes", "Ultralytics", "HRNet", "YOLOv5, read closely"


class Message(NamedTuple):
    """A log's words, the diagnosis, and what the screen says besides."""

    guide: str
    text: str
    name: str
    says: tuple[str, ...]


MESSAGES = [
    Message(
        YOLO,
        "    store = TCPStore(master_addr, master_port, world_size, start_daemon)\nRuntimeError: Address already in use",
        "port-in-use",
        ("nccl-doctor fix-port",),
    ),
    Message(
        YOLO,
        "gpu02:77:90 [0] include/socket.h:403 NCCL WARN Connect to 192.168.1.2<50565> failed : No route to host\n"
        "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version "
        "2.7.8",
        "no-route-to-host",
        ("REJECT", "Find the rule or route that causes this:", "nccl-doctor check -w"),
    ),
    Message(
        YOLO,
        "gpu02:77:90 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
        "gpu02:77:90 [0] include/socket.h:403 NCCL WARN Connect to 192.168.1.2<50565> failed : Connection refused\n"
        "gpu02:77:90 [0] NCCL INFO bootstrap.cc:95 -> 2",
        "connection-refused",
        ("192.168.1.2:50565", "nccl-doctor check -w"),
    ),
    Message(
        DDP,
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, "
        "but not set",
        "launcher-env-missing",
        ("torchrun", "nccl-doctor launch"),
    ),
    Message(DDP, "KeyError: 'SLURM_PROCID'", "launcher-env-missing", ("nccl-doctor launch",)),
    Message(DDP, "Not using distributed mode", "launcher-env-missing", ("torchrun",)),
    Message(DDP, "RuntimeError: CUDA error: invalid device ordinal", "local-rank-invalid", ("CUDA_VISIBLE_DEVICES",)),
    Message(
        DDP, "AssertionError: insufficient CUDA devices for DDP command", "local-rank-invalid", ("--nproc_per_node",)
    ),
    Message(
        DDP,
        "oak4:610:700 [0] bootstrap.cc:125 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8",
        "world-size-mismatch",
        ("16", "8"),
    ),
    Message(
        ULTRALYTICS,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "port-in-use",
        ("nccl-doctor fix-port 29500",),
    ),
    Message(
        ULTRALYTICS,
        "RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "shm-exhausted",
        ("--ipc=host",),
    ),
    Message(
        HRNET,
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        "rendezvous-timeout",
        ("nccl-doctor check",),
    ),
]


@pytest.mark.parametrize("one", MESSAGES, ids=lambda one: f"{one.guide}: {one.text.split(':')[-1].strip()[:40]}")
def test_what_they_read_by_eye(one: Message) -> None:
    said = report(diagnose([LogSource("run.log", [one.text.encode() + b"\n"])]), 0.1)
    assert said.diagnoses[0].name == one.name
    assert_says(said, one.says)


class Look(NamedTuple):
    """What they do by hand, a cluster in that state, the diagnosis, and what the screen says besides."""

    guide: str
    by_hand: str
    state: str
    name: str
    says: tuple[str, ...]


LOOKS = [
    Look(YOLO, "ps -aux | grep python; sudo kill PID", "ports/port_in_use/fires", "port-in-use",
         ("fix-port", "--kill --yes")),
    Look(YOLO, "another --master_port", "ports/port_in_use/fires", "port-in-use",
         ("Set another master_port", "fix-port --next finds one")),
    Look(YOLO, "NCCL_IB_DISABLE by hand", "environment/env_bad_value/fires", "env-bad-value", ("NCCL_IB_DISABLE",)),
    Look(YOLO, "ufw status", "ports/firewall_blocks_port/fires-ufw", "firewall-blocks-port", ("ufw allow proto tcp from",)),
    Look(YOLO, "ps -aux | grep python on every machine", "processes/stale_process/fires", "stale-process", ("fix-port",)),
    Look(YOLO, "ifconfig, the interface with that IP, NCCL_SOCKET_IFNAME=eno1", "interfaces/ifname_needed/fires",
         "ifname-needed", ("export NCCL_SOCKET_IFNAME='=eno1'",)),
    Look(YOLO, "nc -l 5678 -v; nc 192.168.1.2 5678; ping", "ports/port_unreachable/fires", "port-unreachable",
         ("node2 can't reach node1 on ports 29500, 40001 and 40002", "towards node1")),
    Look(YOLO, "firewall-cmd --zone=trusted --add-source=IP; --list-all", "ports/firewall_blocks_port/fires",
         "firewall-blocks-port",
         ("node1", "as root:", "firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2")),
    Look(DDP, "RANK and WORLD_SIZE by hand", "environment/job_variable_conflict/fires", "job-variable-conflict",
         ("RANK", "the launcher sets them")),
    Look(DDP, "more processes than GPUs", "software/gpu_count_low/fires", "gpu-count-low",
         ("node3 is configured to start 8 ranks, but has only 7 GPUs", "nproc_per_node")),
    Look(DDP, "CUDA_DEVICE_ORDER, where the GPUs of a machine differ", "software/gpu_model_mismatch/fires-within-one-host",
         "gpu-model-mismatch", ("CUDA_DEVICE_ORDER=PCI_BUS_ID",)),
    Look(DDP, "two ranks on one GPU", "software/gpu_overlap/fires", "gpu-overlap",
         ("are the same machine, and both use GPU", "cuda_visible_devices")),
    Look(ULTRALYTICS, "the same code and data on all machines", "software/code_mismatch/fires", "code-mismatch",
         ('"train.py" on node2 differs from the copy on the other hosts', "rsync")),
    Look(ULTRALYTICS, "the same versions on all machines", "software/version_mismatch/fires", "version-mismatch",
         ("torch: 2.9.1 on node[1-2], 2.8.0 on node3", "Install the same versions")),
    Look(ULTRALYTICS, "docker run without --ipc=host", "processes/shm_small/fires-dockers-default", "shm-small", ("--ipc=host",)),
    Look(HRNET, "--dist-url tcp://127.0.0.1:23456 on two machines", "interfaces/master_addr_loopback/fires",
         "master-addr-loopback", ("127.0.0.1",)),
    Look(HRNET, "two jobs with one dist-url", "environment/job_variable_conflict/fires-same-master",
         "job-variable-conflict", ("another master port",)),
    Look(CLOSELY, "a slow link is not noticed", "allreduce/allreduce_slow/fires", "allreduce-slow", ("GB/s",)),
]  # fmt: skip


@pytest.mark.parametrize("one", LOOKS, ids=lambda one: f"{one.guide}: {one.by_hand[:50]}")
def test_what_they_look_at_by_hand(one: Look) -> None:
    said = judge(load(CHECKS / f"{one.state}.json"), "check")
    assert one.name in [found.name for found in said.diagnoses]
    assert_says(said, one.says)


@pytest.mark.parametrize("one", ["fires", "fires-ufw"])
def test_many_switch_the_firewall_off_and_nobody_is_told_to(one: str) -> None:
    said = judge(load(CHECKS / f"ports/firewall_blocks_port/{one}.json"), "check")
    text = render("check", "human", said, RenderOptions()).lower()
    assert not [word for word in ("stop", "disable", "flush", "systemctl", " -f") if word in text]


def assert_says(said: Report, words: tuple[str, ...]) -> None:
    assert words, "a row that expects no word shows nothing"
    text = " ".join(render(said.command, "human", said, RenderOptions()).split())
    for word in words:
        assert word in text, text


class Start(NamedTuple):
    """A way to start, the hosts and options that say it, and what the lines are."""

    guide: str
    how: str
    hosts: str
    options: tuple[str, ...]
    lines: tuple[str, ...]


TWO = "nproc_per_node: 2\nhosts: [192.168.1.2, 192.168.1.3]\n"
SPLIT = """\
nproc_per_node: 2
master_port: 1234
hosts:
  - 192.168.1.2
  - {name: big, address: 192.168.1.100, cuda_visible_devices: "0,1"}
  - {name: big-b, address: 192.168.1.100, cuda_visible_devices: "2,3"}
"""
STARTS = [
    Start(YOLO, "torch.distributed.launch with a node rank; four GPUs as two nodes", SPLIT,
          ("--launcher", "launch", "--", "train.py", "--batch-size", "64"),
          ("python3 -m torch.distributed.launch --nnodes=3 --node_rank=0 --nproc_per_node=2 ",
           "--master_addr=192.168.1.2 --master_port=1234 train.py", "CUDA_VISIBLE_DEVICES=0,1 python3", "CUDA_VISIBLE_DEVICES=2,3 python3",
           "does not divide evenly among 6 ranks")),
    Start(DDP, "init_method='env://'", TWO, ("--launcher", "env", "--", "train.py"),
          ("MASTER_ADDR=192.168.1.2", "WORLD_SIZE=4", "RANK=", "LOCAL_RANK=")),
    Start(DDP, "init_method='tcp://172.16.1.186:2222' and a rank", "master_port: 2222\nhosts: [172.16.1.186, gpu2]\n",
          ("--nproc-per-node", "1", "--launcher", "tcp", "--", "train.py", "--init={url}", "--rank", "{rank}"),
          ("--init=tcp://172.16.1.186:2222 --rank 1",)),
    Start(DDP, "under Slurm", "nproc_per_node: 8\nhosts: ['gpu[01-02]']\n", ("--format", "slurm", "--", "train.py"),
          ("#SBATCH --nodelist=gpu[01-02]", "srun ")),
    Start(DDP, "--use_env", TWO, ("--launcher", "launch", "--use-env", "--", "train.py"), ("--use_env train.py",)),
    Start(ULTRALYTICS, "torch.distributed.run, a batch that is a multiple", TWO, ("--", "train.py", "--batch", "64"),
          ("-m torch.distributed.run --nnodes=2 --node_rank=1 --nproc_per_node=2", "--batch 64 over 4 ranks: 16 each")),
    Start(ULTRALYTICS, "a batch that does not divide", TWO, ("--", "train.py", "--batch", "63"),
          ("63 does not divide evenly among 4 ranks; the nearest batch sizes that do are 60 and 64",)),
    Start(YOLO, "NCCL_DEBUG=INFO and NCCL_IB_DISABLE=1 before the next try", TWO,
          ("--diagnosable", "--env", "NCCL_IB_DISABLE=1", "--", "train.py"),
          ("NCCL_DEBUG=INFO", "NCCL_IB_DISABLE=1", "# after a failure, on each host: nccl-doctor logs ")),
    Start(HRNET, "a second job on the other GPUs, with a dist-url of its own", "nproc_per_node: 4\nhosts: [127.1.1.20]\n",
          ("--launcher", "tcp", "--master-port", "12345", "--env", "CUDA_VISIBLE_DEVICES=4,5,6,7", "--", "train.py"),
          ("CUDA_VISIBLE_DEVICES=4,5,6,7 python3 train.py --dist-url tcp://127.1.1.20:12345 --world-size 1 --rank 0",)),
    Start(HRNET, "mp.spawn with a dist-url, the second job on another port", TWO,
          ("--launcher", "tcp", "--master-port", "23457", "--", "train.py"),
          ("--dist-url tcp://192.168.1.2:23457 --world-size 2 --rank 1",)),
]  # fmt: skip


@pytest.mark.parametrize("one", STARTS, ids=lambda one: f"{one.guide}: {one.how}")
def test_how_they_start(tmp_path: Path, one: Start) -> None:
    (tmp_path / "hosts.yaml").write_text(one.hosts)
    done = run("launch", "hosts.yaml", *one.options, cwd=tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for line in one.lines:
        assert line in done.stdout + done.stderr


GOOD_START = """\
gpu03:55:55 [0] NCCL INFO Bootstrap : Using [0]eno1:192.168.1.3<0>
gpu03:55:55 [0] NCCL INFO NET/Socket : Using [0]eno1:192.168.1.3<0>
gpu03:55:55 [0] NCCL INFO Using network Socket
NCCL version 2.7.8+cuda10.2
gpu03:55:70 [0] NCCL INFO comm 0x7f8a00001060 rank 5 nranks 6 cudaDev 0 busId 1000 - Init COMPLETE
gpu03:55:70 [0] NCCL INFO Trees [0] 2/-1/-1->5->4|4->5->2/-1/-1 [1] 2/-1/-1->5->4|4->5->2/-1/-1
"""


def test_what_a_good_start_looks_like() -> None:
    assert not diagnose([LogSource("run.log", [GOOD_START.encode()])]).causes
    facts = facts_of(GOOD_START.splitlines())
    (process,) = facts.processes.values()
    assert [(one.name, one.address) for one in process.interfaces] == [("eno1", "192.168.1.3")]
    assert process.network == "Socket"
    ranks = [
        {"rank": n, "host": f"gpu0{n // 2 + 1}", "local_rank": n % 2, "stage": "done", "ok": True} for n in range(6)
    ]
    drawn = {"backend": "nccl", "world_size": 6, "ok": True, "outcome": "ok", "ranks": ranks, "trees": facts.trees}
    text = "\n".join(line for block in smoke(AllReduceReport.model_validate(drawn), PLAIN) for line in block)
    assert "tree     rank 4 <- 5" in text


def test_the_backend_is_chosen_as_they_choose_it() -> None:
    """``backend="nccl" if dist.is_nccl_available() else "gloo"``."""
    assert planned(everywhere()).backend == "nccl"
    assert planned({**everywhere(), "node2": {"facts": {"gpus": []}}}).backend == "gloo"
    assert len(gpus(2)) == 2


def test_the_rings_time_stands_beside_what_was_measured() -> None:
    """T = 2 (N - 1) / N · K / B, for the link's speed and for the measured one."""
    rank: dict[str, Any] = {"local_rank": 0, "stage": "done", "ok": True}
    size = {"bytes": 1 << 20, "seconds": 0.002, "algbw": 0.524288, "busbw": 0.524288}
    result = {"backend": "gloo", "world_size": 2, "ok": True, "outcome": "ok", "sizes": [size]}
    ranks = [{**rank, "rank": n, "host": f"node{n}"} for n in range(2)]
    link = {"host": "node1", "name": "eno1", "gb_per_s": 1.25, "share": 0.42}
    for more, says in (({"link": link}, "ideal (link)"), ({}, "ideal")):
        said = AllReduceReport.model_validate({**result, "ranks": ranks, **more})
        text = "\n".join("\n".join(block) for block in smoke(said, PLAIN))
        assert says in text
        assert "A gradient of 100 MB takes about" in text
