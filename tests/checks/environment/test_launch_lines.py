"""The guides' launch lines, as they print them and as people get them wrong, judged against hosts as they are."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Outcome
from nccl_doctor.model.report import Report
from nccl_doctor.probe.options import LAUNCHERS
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import healthy


def gpu(index: int, host: int) -> dict[str, Any]:
    uuid = f"GPU-0000000{index}-aaaa-0000-0000-00000000000{host}"
    sizes = {"memory_total_mib": 23034, "memory_used_mib": 0}
    return {"index": index, "name": "NVIDIA L4", "uuid": uuid, **sizes, "driver": "570.86.15"}


def judged(
    line: str,
    *,
    hosts: int,
    gpus: int = 2,
    port: int = 29500,
    devices: tuple[str, ...] = (),
    more: dict[str, Any] | None = None,
) -> Report:
    """The report on a line for so many hosts with so many GPUs each; ``devices`` are those of each in the hosts file."""
    document = healthy()
    document["hosts"] = document["hosts"][:hosts]
    for place, host in enumerate(document["hosts"]):
        host["facts"] |= {"gpus": [gpu(index, place) for index in range(gpus)], **(more or {})}
    document["cluster"] |= {"line": line, "master_port": port, "nodes": document["cluster"]["nodes"][:hosts]}
    document["hosts"][0]["facts"]["master_port"]["port"] = port
    document["mesh"] = document["smoke"] = {"$skipped": "not asked for"}
    for place, own in enumerate(devices):
        for node in (document["cluster"]["nodes"][place], document["hosts"][place]["node"]):
            node |= {"cuda_visible_devices": own, "nproc_per_node": len(own.split(","))}
    snapshot = Snapshot.model_validate(document)
    return judge(snapshot, "check", lambda check: check.name == "launch-line-wrong")


LAUNCH = "python -m torch.distributed.launch --nproc_per_node {g} --nnodes {n} --node_rank {r} --master_addr {a} "
YOLO = LAUNCH + "--master_port 1234 train.py --batch {b} --data coco.yaml"
RUN = "python -m torch.distributed.run --nproc_per_node {g} train.py --batch {b} --data coco.yaml --device {d}"
URL = "python main.py --dist-url tcp://{a} --world-size {n} --rank {r}"
HRNET = "python tools/dist_train.py --cfg w32.yaml --dist-url tcp://{a}"
ELASTIC = "torchrun --nnodes={n} --nproc_per_node={g} --rdzv_backend={k} --rdzv_endpoint={a} train.py"
VLLM = "vllm serve org/model -tp {tp} -pp {pp} --nnodes {n} --node-rank {r} --master-addr {a} --master-port 29500"
SGLANG = (
    "python -m sglang.launch_server --model-path org/model --tp {tp} --nnodes {n} --node-rank {r} --dist-init-addr {a}"
)
ACCELERATE = (
    "accelerate launch --num_machines 2 --num_processes {g} --machine_rank 0 --main_process_ip 10.0.0.1 "
    "--main_process_port {p} train.py"
)
TITAN = (
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint={a} --local-ranks-filter 0 --role rank "
    "--tee 3 -m torchtitan.train"
)
MASTER = "10.0.0.1"
BY_HAND = "MASTER_ADDR={a} MASTER_PORT=29500 WORLD_SIZE=2 RANK={r} python train.py"
TWICE = "CUDA_VISIBLE_DEVICES={d} " + YOLO
"""A machine with four GPUs as two nodes."""
TABLE: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    # guide, hosts as they are, what it prints, what people make of it, what is said, a part of the corrected line
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"n": 1}, "specifies --nnodes=1", "--nnodes=2"),
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 1, "a": MASTER, "b": 64}, {"r": 2}, "not in the range from 0 to 1", "_rank=1"),
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"a": "192.168.1.2"}, "is not an address of the first host", "--master_addr=10.0.0.1"),
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"a": "127.0.0.1"}, "connect to itself", "--master_addr=10.0.0.1"),
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"g": 4}, "4 ranks per node need 4 GPUs", "--nproc_per_node=2"),
    (YOLO, {"hosts": 2, "port": 1234}, {"g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"b": 65}, "does not divide evenly among 4 ranks", "--batch 64"),
    (RUN, {"hosts": 1}, {"g": 2, "b": 64, "d": "0,1"}, {"b": 63}, "does not divide evenly among 2 ranks", "--batch 64"),
    (RUN, {"hosts": 1}, {"g": 2, "b": 64, "d": "0,1"}, {"d": "0,1,2,3"}, "asks for GPUs 2 and 3", ""),
    (RUN, {"hosts": 1}, {"g": 2, "b": 64, "d": "0,1"}, {"g": "2 --master-prt 1"}, "has no option --master-prt", "--master_port"),
    ("yolo detect train data=coco.yaml device={d} batch={b}", {"hosts": 1}, {"d": "0,1", "b": 64}, {"d": "0,7"}, "asks for GPU 7", ""),
    (URL, {"hosts": 2}, {"a": f"{MASTER}:29500", "n": 2, "r": 0}, {"a": "127.0.0.1:29500"}, "connect to itself", "tcp://10.0.0.1:29500"),
    (URL, {"hosts": 2}, {"a": f"{MASTER}:29500", "n": 2, "r": 1}, {"r": 2}, "ranks are numbered from 0", ""),
    (URL, {"hosts": 2}, {"a": f"{MASTER}:29500", "n": 2, "r": 0}, {"a": "172.16.1.186:2222"}, "is not an address of the first host", "tcp://10.0.0.1:29500"),
    (URL, {"hosts": 2}, {"a": f"{MASTER}:29500", "n": 2, "r": 0}, {"a": f"{MASTER}:2222"}, "nccl-doctor tested port 29500", "tcp://10.0.0.1:29500"),
    (HRNET, {"hosts": 2}, {"a": f"{MASTER}:29500"}, {"a": "127.0.0.1:23456"}, "connect to itself", "tcp://10.0.0.1:29500"),
    (HRNET, {"hosts": 2}, {"a": f"{MASTER}:29500"}, {"a": "127.1.1.20:12345"}, "connect to itself", "tcp://10.0.0.1:29500"),
    ("torchrun --standalone --nproc_per_node={g} train.py{x}", {"hosts": 1}, {"g": 2, "x": ""}, {"g": 8}, "8 ranks per node", "=2"),
    (ELASTIC, {"hosts": 3}, {"n": "1:4", "g": 2, "k": "c10d", "a": f"{MASTER}:29500"}, {"k": "static"}, "is a range", ""),
    (ELASTIC, {"hosts": 3}, {"n": "3", "g": 2, "k": "c10d", "a": f"{MASTER}:29500"}, {"a": "localhost:29500"}, "connect to itself", "endpoint=10.0.0.1:29500"),
    ("torchrun --nproc_per_node={g} --nnodes={n} --node_rank=0 --master_addr=10.0.0.1 --master_port=29500 train.py", {"hosts": 2, "gpus": 1}, {"g": "gpu", "n": 2}, {"n": 4}, "specifies --nnodes=4", "--nnodes=2"),
    ("accelerate launch --multi_gpu --num_machines {n} --num_processes 4 --machine_rank 0 --main_process_ip {a} --main_process_port 29500 train.py", {"hosts": 2}, {"n": 2, "a": MASTER}, {"a": "127.0.0.1"}, "connect to itself", "--main_process_ip=10.0.0.1"),
    ("accelerate launch {k} --num_machines 2 --num_processes 4 --machine_rank 0 --main_process_ip 10.0.0.1 --main_process_port 29500 train.py", {"hosts": 2}, {"k": "--multi_gpu"}, {"k": "--cpu"}, "without a rank", "--multi_gpu"),
    ("accelerate launch --num_machines {n} --machine_rank 0 --main_process_ip 10.0.0.1 --main_process_port 29500{x} train.py", {"hosts": 2}, {"n": 2, "x": ""}, {"x": " --mixed_precison bf16"}, "did you mean --mixed_precision?", "--mixed_precision"),
    (ACCELERATE, {"hosts": 2, "gpus": 8}, {"g": 16, "p": 29500}, {"g": 8}, "--num_processes 8 is the total number of ranks, but all hosts together can run 16", "--num_processes=16"),
    (ACCELERATE, {"hosts": 2, "gpus": 8}, {"g": 16, "p": 29500}, {"p": 0}, "is used with port 0, which means any free port", "--main_process_port=29500"),
    (TITAN, {"hosts": 2, "gpus": 8}, {"a": f"{MASTER}:29500"}, {"a": "localhost:0"}, "connect to itself", "--rdzv_endpoint=10.0.0.1:29500"),
    (TITAN, {"hosts": 2, "gpus": 8}, {"a": f"{MASTER}:29500"}, {"a": f"{MASTER}:0"}, "is used with port 0, which means any free port", "--rdzv_endpoint=10.0.0.1:29500"),
    ("deepspeed --num_nodes {n} --num_gpus 2 --master_addr 10.0.0.1 train.py", {"hosts": 2}, {"n": 2}, {"n": 3}, "specifies --nnodes=3", ""),
    ("srun -N {n} --ntasks-per-node=2 python train.py", {"hosts": 2}, {"n": 2}, {"n": 4}, "specifies --nnodes=4", ""),
    (VLLM, {"hosts": 2}, {"tp": 2, "pp": 2, "n": 2, "r": 0, "a": MASTER}, {"a": "127.0.0.1"}, "connect to itself", "--master-addr=10.0.0.1"),
    (VLLM, {"hosts": 2}, {"tp": 2, "pp": 2, "n": 2, "r": 0, "a": MASTER}, {"tp": 8}, "need 16 GPUs, but the hosts have 4 in total", ""),
    (SGLANG, {"hosts": 2}, {"tp": 4, "n": 2, "r": 0, "a": f"{MASTER}:29500"}, {"r": 2}, "node rank 2 is not in the range from 0 to 1", "--node-rank=1"),
    (SGLANG, {"hosts": 2}, {"tp": 4, "n": 2, "r": 0, "a": f"{MASTER}:29500"}, {"a": "localhost:29500"}, "connect to itself", "--dist-init-addr=10.0.0.1:29500"),
    (BY_HAND, {"hosts": 2}, {"a": MASTER, "r": 1}, {"r": 2}, "RANK=2 is too high for WORLD_SIZE=2: ranks are numbered from 0", ""),
    (BY_HAND, {"hosts": 2}, {"a": MASTER, "r": 1}, {"a": "localhost"}, "connect to itself", "MASTER_ADDR=10.0.0.1 "),
    (TWICE, {"hosts": 2, "gpus": 4, "port": 1234, "devices": ("0,1", "2,3")}, {"d": "2,3", "g": 2, "n": 2, "r": 1, "a": MASTER, "b": 64}, {"d": "0,1"}, "the hosts file gives node2 2,3", "CUDA_VISIBLE_DEVICES=2,3 python"),
    (TWICE, {"hosts": 2, "gpus": 4, "port": 1234, "devices": ("0,1", "2,3")}, {"d": "0,1", "g": 2, "n": 2, "r": 0, "a": MASTER, "b": 64}, {"g": 4}, "4 ranks per node need 4 GPUs", "--nproc_per_node=2"),
    ("mpirun -np {n} -npernode {g} python train.py", {"hosts": 2}, {"n": 4, "g": 2}, {"g": 8}, "8 ranks per node need 8 GPUs", ""),
    ("srun -N 2 --ntasks-per-node={g} python train.py", {"hosts": 2}, {"g": 2}, {"g": 4}, "4 ranks per node need 4 GPUs", ""),
    ("python -m torch.distributed.launch --nproc_per_node 2{x} --master_port 29501 train.py --batch 64", {"hosts": 1, "port": 29501}, {"x": ""}, {"x": " --use-envs"}, "has no option --use-envs", "--use_env"),
    ("ray start --head --port={p}", {"hosts": 2}, {"p": 6379}, {"p": 10005}, "one of its workers' ports, 10002 to 19999", ""),
    (VLLM + " {x}", {"hosts": 2, "port": 29500}, {"tp": 2, "pp": 2, "n": 2, "r": 0, "a": MASTER, "x": "--port 5600"}, {"x": "--port 5600 --kv-transfer-config c"}, "its NIXL side channels'", ""),
    ("vllm serve org/model --tensor-parallel-size {tp}", {"hosts": 2}, {"tp": 2}, {"tp": 4}, "because --nnodes is not set", "--headless"),
]  # fmt: skip
ROWS = [pytest.param(*row, id=f"{place:02} {row[4]}") for place, row in enumerate(TABLE)]


@pytest.mark.parametrize(("line", "hosts", "right", "wrong", "said", "better"), ROWS)
def test_as_the_guide_prints_it_and_as_people_get_it_wrong(
    line: str, hosts: dict[str, Any], right: dict[str, Any], wrong: dict[str, Any], said: str, better: str
) -> None:
    plain = judged(line.format(**right), **hosts)
    assert plain.diagnoses == ()
    assert next(one for one in plain.checks if one.name == "launch-line-wrong").outcome is Outcome.PASS
    (found,) = judged(line.format(**{**right, **wrong}), **hosts).diagnoses
    assert said.lower() in " ".join((found.message, *map(str, found.evidence))).lower()
    assert better in " ".join(one.command for one in found.fix.commands)


def test_options_are_those_that_the_hosts_launchers_have() -> None:
    def said(options: str, *known: set[str]) -> tuple[str, list[str]]:
        document = healthy()
        for place, host in enumerate(document["hosts"]):
            own = {**LAUNCHERS["torchrun"].options, "newer": True, "flag": False}
            names = own.keys() - {"numa_binding", "newer", "flag"} | known[min(place, len(known) - 1)]
            host["facts"]["engines"]["options"] = {name: own[name] for name in names}
            host["facts"]["gpus"] = [gpu(index, place) for index in range(2)]
        first = document["cluster"]["master_addr"]
        placed = f"--nnodes=3 --node_rank=0 --nproc_per_node=2 --master_addr={first} --master_port=29500"
        document["cluster"]["line"] = f"torchrun {options} {placed} train.py"
        report = judge(Snapshot.model_validate(document), "check", lambda check: check.name == "launch-line-wrong")
        found = report.diagnoses
        return " ".join(one.message for one in found), [c.command for one in found for c in one.fix.commands]

    assert said("--newer 3 --flag", {"newer", "flag"}) == ("", [])
    assert said("--numa_binding=node", {"numa_binding"}) == ("", [])
    alone, lines = said("--numa_binding=node", {"numa_binding"}, set())
    assert alone.startswith("torchrun on node[2-3] has no option --numa_binding, unlike on other hosts")
    assert not any("numa" in line for line in lines)
    assert said("--numa_binding=node", set())[0].startswith("torchrun has no option --numa_binding")


HUNG = {"$unknown": "nvidia-smi gave no answer"}
PLACED = "torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr={a} --master_port=29500 train.py"


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (PLACED.format(a=MASTER), {"gpus": HUNG}),
        ("python train.py --device 0", {"gpus": HUNG}),
        ("vllm serve org/model -tp 4", {"gpus": HUNG}),
        (PLACED.format(a="10.9.9.9"), {"interfaces": {"$unknown": "netlink gives no answer"}}),
        (HRNET.format(a="10.9.9.9:29500"), {"interfaces": {"$unknown": "netlink gives no answer"}}),
    ],
)
def test_what_hangs_on_a_fact_that_nobody_has_is_not_judged(line: str, facts: dict[str, Any]) -> None:
    report = judged(line, hosts=2, more=facts)
    assert report.diagnoses == ()
    (found,) = (one for one in report.checks if one.name == "launch-line-wrong")
    assert found.outcome is Outcome.UNKNOWN
    assert "not known" in (found.reason or "")
    assert not report.complete


NODES = "--nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --master_port=29500"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make train", "what make starts is not known"),
        ("nosuchpython train.py", "what nosuchpython starts is not known"),
        ("bash run", "what bash run starts is not known"),
        ("mpirun -np 8 python train.py", "mpirun's hosts are not in it"),
        ("docker compose up", "what docker compose starts is not known"),
    ],
)
def test_a_line_that_can_t_be_read_is_not_judged(line: str, said: str) -> None:
    report = judged(line, hosts=2)
    (check,) = (one for one in report.checks if one.name == "launch-line-wrong")
    assert (report.diagnoses, check.outcome, report.complete) == ((), Outcome.UNKNOWN, False)
    assert f"the launch command was not judged: {said}" in (check.reason or "")


@pytest.mark.parametrize(
    ("line", "said", "mended"),
    [
        ("uv run torchrun train.py", "without --nnodes", "uv run torchrun --nnodes=2"),
        ("nohup torchrun --nnodes=4 train.py", "specifies --nnodes=4", "nohup torchrun"),
        ("docker run --rm img torchrun --nnodes=4 t.py", "specifies --nnodes=4", "docker run --rm img torchrun"),
        ("bash -c 'torchrun --nnodes=4 t.py'", "specifies --nnodes=4", ""),
        ("'torchrun --nnodes=4 t.py'", "specifies --nnodes=4", "torchrun"),
        (f"srun --ntasks-per-node=8 torchrun {NODES} t.py", "starts torchrun 8 times on each host", ""),
        ("mpirun -np 32 -H node1:8,node2:8 python t.py", "-H gives only 16 slots", ""),
        ("mpirun -np 2 -H node1,node2 -x MASTER_ADDR=127.0.0.1 python t.py", "connect to itself", ""),
        (f"CUDA_VISIBLE_DEVICES=0 torchrun {NODES} --nproc_per_node=2 t.py", "ranks per node need", ""),
    ],
)
def test_what_stands_in_front_hides_no_fault_and_no_remedy_fails_itself(line: str, said: str, mended: str) -> None:
    (found,) = judged(line, hosts=2).diagnoses
    assert said.lower() in " ".join((found.message, *map(str, found.evidence))).lower()
    commands = [one.command for one in found.fix.commands]
    assert bool(commands) is bool(mended)
    for command in commands:
        assert command.startswith(mended)
        assert judged(command, hosts=2).diagnoses == ()
    assert commands or found.fix.summary


C10D = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d"
SGL = "python -m sglang.launch_server --model-path m"


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        # docs.vllm.ai, Data Parallel Deployment
        ("vllm serve m --data-parallel-size 16 --data-parallel-size-local 8 --data-parallel-address 10.0.0.1", 2),
        ("vllm serve m -tp 2 --data-parallel-size 4 --data-parallel-size-local 4 --data-parallel-hybrid-lb", 2),
        # docs.sglang.ai, Server Arguments: ranks of dp lie within tp
        (f"{SGL} --tp 16 --dp 2 --enable-dp-attention --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:29500", 2),
        (f"{SGL} --tp 8 --dp 8 --enable-dp-attention", 1),
        # lightning.ai, Trainer: an int is a count
        ("python train.py --devices=8 --num_nodes=2", 2),
        ("python train.py --devices 8", 1),
        # torch/distributed/run.py, get_rdzv_endpoint
        ("torchrun --nnodes=2 --nproc_per_node=8 --node-rank=0 --rdzv-endpoint=10.0.0.1:29500 t.py", 2),
        ("ray start --head --node-ip-address=10.0.0.1 --port=6379", 2),
        ("deepspeed --no_ssh --node_rank 0 --master_addr 10.0.0.1 train.py", 2),
    ],
)
def test_a_line_of_a_documentation_is_right(line: str, hosts: int) -> None:
    report = judged(line, hosts=hosts, gpus=8)
    assert report.diagnoses == ()
    assert next(one for one in report.checks if one.name == "launch-line-wrong").outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("line", "hosts", "said"),
    [
        ("vllm serve m -tp 4 --data-parallel-size 16 --data-parallel-size-local 4", 2, "need 16 GPUs"),
        (f"{SGL} --tp 8 --dp 2", 1, "need 16 GPUs"),
        ("python train.py --devices 9", 1, "--devices 9 asks for 9 GPUs"),
        ("python train.py --devices 0,8", 1, "asks for GPU 8"),
        ("deepspeed --no_ssh --master_addr 10.0.0.1 train.py", 2, "--no_ssh is given without --node_rank"),
        (f"{C10D} --rdzv_endpoint=10.0.0.1:29500 --local-addr=localhost t.py", 2, "connect to that host itself"),
        (f"{C10D} --rdzv_endpoint=10.9.9.9:29500 t.py", 2, "No host recognizes 10.9.9.9 as its own"),
        (f"{C10D} --rdzv_endpoint=10.0.0.1 t.py", 2, "with c10d's default port 29400, but nccl-doctor tested a differ"),
    ],
)
def test_a_line_that_is_like_it_and_wrong_is_named(line: str, hosts: int, said: str) -> None:
    (found,) = judged(line, hosts=hosts, gpus=8).diagnoses
    assert said in " ".join((found.message, *map(str, found.evidence)))


@pytest.mark.parametrize(
    ("option", "file"),
    [("--config_file fsdp.yaml ", "fsdp.yaml"), ("", "accelerate's default_config.yaml"), ("--num_machines 2 ", "acc")],
)
def test_a_file_of_accelerate_s_that_nobody_read_is_not_judged(option: str, file: str) -> None:
    report = judged(f"accelerate launch {option}train.py", hosts=2, gpus=8)
    (check,) = (one for one in report.checks if one.name == "launch-line-wrong")
    assert (report.diagnoses, check.outcome) == ((), Outcome.UNKNOWN)
    assert f"may stand in {file}" in (check.reason or "")


@pytest.mark.parametrize(
    ("resolution", "outcome"),
    [
        ({"trainer": {"addresses": ["10.0.0.1"], "source": "10.0.0.1"}}, Outcome.PASS),
        ({"trainer": {"addresses": ["10.9.9.9"], "source": "10.0.0.1"}}, Outcome.FOUND),
        ({}, Outcome.UNKNOWN),
    ],
)
def test_a_host_recognizes_another_name_of_its_address(resolution: dict[str, Any], outcome: Outcome) -> None:
    """``_matches_machine_hostname`` compares the addresses of both names."""
    names = healthy()["hosts"][0]["facts"]["resolution"]
    line = f"{C10D} --rdzv_endpoint=trainer:29500 t.py"
    report = judged(line, hosts=2, gpus=8, more={"resolution": {**names, **resolution}})
    assert next(one for one in report.checks if one.name == "launch-line-wrong").outcome is outcome


def test_a_server_that_is_none_of_the_hosts_is_not_judged() -> None:
    line = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=etcd-v2 --rdzv_endpoint=etcd.internal:2379 t.py"
    report = judged(line, hosts=2, gpus=8)
    (check,) = (one for one in report.checks if one.name == "launch-line-wrong")
    assert (report.diagnoses, check.outcome) == ((), Outcome.UNKNOWN)
    assert "its ranks meet by etcd-v2 at etcd.internal:2379, which was not tested" in (check.reason or "")


def test_the_line_for_vllm_has_the_options_that_it_knows() -> None:
    (found,) = judged("vllm serve m --tensor-parallel-size 16", hosts=2, gpus=8).diagnoses
    assert [one.command.partition(" --master")[0] for one in found.fix.commands] == ["vllm serve m --nnodes=2"] * 2
    assert all("--node-rank=" in one.command for one in found.fix.commands)


def test_a_size_that_is_not_in_the_line_is_not_judged() -> None:
    report = judged("vllm serve m --data-parallel-size 16 --data-parallel-address 10.0.0.1", hosts=2, gpus=8)
    (check,) = (one for one in report.checks if one.name == "launch-line-wrong")
    assert (report.diagnoses, check.outcome) == ((), Outcome.UNKNOWN)
    assert "--data-parallel-size-local" in (check.reason or "")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("--dist-url tcp://127.0.0.1:23456 --world-size 3 --rank 0", "each host connect to itself"),
        (
            "--dist-url tcp://10.0.0.1:23456 --world-size 4 --rank 0",
            "--world-size 4 was given, but the 3 hosts have 3 ranks",
        ),
        ("--dist-url=tcp://10.0.0.1:23456 --world_size=3 --rank=5", "--rank 5 is too high for --world-size 3"),
    ],
)
def test_a_script_that_is_told_its_rank_gets_a_line_for_each_host(line: str, fault: str) -> None:
    (found,) = judged(f"python main.py {line}", hosts=3, gpus=1, port=23456).diagnoses
    assert fault in f"{found.message} {found.evidence}"
    assert [one.host for one in found.fix.commands] == ["node1", "node2", "node3"]
    for rank, one in enumerate(found.fix.commands):
        words = one.command.replace("=", " ").replace("_", "-").split()
        assert words == f"python main.py --dist-url tcp://10.0.0.1:23456 --world-size 3 --rank {rank}".split()


def test_ranks_that_a_script_starts_on_each_node_by_itself_are_left_to_it() -> None:
    report = judged("python main.py --dist-url tcp://10.0.0.1:29500 --world-size 2 --rank 1", hosts=2, gpus=4)
    assert report.diagnoses == ()
