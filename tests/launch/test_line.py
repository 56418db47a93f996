"""Lines that start a job, read as their launchers read them."""

from __future__ import annotations

import inspect
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import launch, run

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import behind_dashes, joined, own_lines, read_line
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.probe.options import LAUNCHERS, port_words, source_options

NODES = tuple(Node(name=f"n{rank}", address=f"10.0.0.{rank + 1}", node_rank=rank) for rank in range(2))
CLUSTER = Cluster(nodes=NODES, master_addr="10.0.0.1", master_port=29500)


def read(text: str) -> object:
    return read_line(shlex.split(text))


def corrected(text: str, gpus: dict[str, int] | None = None) -> list[str]:
    return [
        str(joined(words))
        for words in own_lines(read_line(shlex.split(text)), CLUSTER, {"n0": 2, "n1": 2}, gpus or {}).values()
    ]


def test_torchruns_options_are_those_of_torch() -> None:
    theirs = {
        option.lstrip("-").replace("-", "_"): action.nargs != 0
        for action in run.get_args_parser()._actions
        for option in action.option_strings
    }
    later = {"log_line_prefix_template": True, "print_completion": True}  # torch 2.14
    assert theirs == source_options(inspect.getsource(run))
    assert theirs | later == LAUNCHERS["torchrun"].options
    both = source_options(inspect.getsource(run)) | source_options(inspect.getsource(launch))
    assert both | later == LAUNCHERS["launch"].options


def test_options_of_a_source_are_a_bounded_number_of_names() -> None:
    text = """
    >>> parser.add_argument("--no")
    parser.add_argument("file", type=str)
    parser.add_argument('-q', "--quiet-please",
        action="store_true")
    own.add_argument(
        "--level",  help="action='store_true'")
    parser.add_argument(f"--{name}")
    parser.add_argument("--bad;name")
    """
    assert source_options(text) == {"h": False, "help": False, "q": False, "quiet_please": False, "level": False}
    many = "\n".join(f'parser.add_argument("--x{number}")' for number in range(2000))
    assert len(source_options(many)) == 512


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        (["accelerate"], ["accelerate launch --main_process_port 7 …"]),
        (["deepspeed", "deepspeed.launcher.launch"], ["deepspeed --master_port 7 …"]),
        (["accelerate.commands.launch"], ["python -m accelerate.commands.launch --main_process_port 7 …"]),
        (["mpirun"], ["torchrun --master_port 7 …", "python -m torch.distributed.launch --master_port 7 …"]),
        (["torchrun"], ["torchrun --master_port 7 …", "python -m torch.distributed.launch --master_port 7 …"]),
        (["rm -rf /"], ["torchrun --master_port 7 …", "python -m torch.distributed.launch --master_port 7 …"]),
    ],
)
def test_a_port_is_told_by_the_option_of_the_jobs_own_launcher(programs: list[str], words: list[str]) -> None:
    assert list(port_words(programs, 7)) == words
    for one in words:
        assert read_line(shlex.split(one)).options["master_port"] == "7"


@pytest.mark.parametrize(
    ("text", "launcher", "options", "script"),
    [
        ("torchrun --nnodes 2 --nproc-per-node=gpu t.py --nnodes 7", "torchrun", {"nnodes": "2", "nproc_per_node": "gpu"},
         ("t.py", "--nnodes", "7")),
        ("python3.11 -u -m torch.distributed.run --standalone -m pkg.train", "torchrun", {"standalone": "", "m": ""},
         ("pkg.train",)),
        ("python3 -X dev /usr/bin/torchrun --nnodes 2 t.py", "torchrun", {"nnodes": "2"}, ("t.py",)),
        ("python -m accelerate.commands.launch --num_machines 2 t.py", "accelerate", {"nnodes": "2"}, ("t.py",)),
        ("python -m torch.distributed.launch --use_env --nproc 2 t.py", "launch", {"use_env": "", "nproc_per_node": "2"},
         ("t.py",)),
        ("accelerate launch --multi_gpu --num_machines 2 --machine_rank 1 t.py", "accelerate",
         {"multi_gpu": "", "nnodes": "2", "node_rank": "1"}, ("t.py",)),
        ("deepspeed --num_nodes 2 --num_gpus 4 --no_ssh t.py --deepspeed", "deepspeed",
         {"nnodes": "2", "nproc_per_node": "4", "no_ssh": ""}, ("t.py", "--deepspeed")),
        ("mpirun -np 4 python t.py", "mpirun", {"world_size": "4"}, ("python", "t.py")),
        ("srun -N 2 --ntasks-per-node=4 python t.py", "srun", {"nnodes": "2", "nproc_per_node": "4"}, ("python", "t.py")),
        ("env A=1 B= python t.py --x", "script", {}, ("t.py", "--x")),
        ("python -m pkg.train --x", "script", {}, ("-m", "pkg.train", "--x")),
    ],
)  # fmt: skip
def test_what_a_line_says(text: str, launcher: str, options: dict[str, str], script: tuple[str, ...]) -> None:
    line = read_line(shlex.split(text))
    assert (line.launcher, line.options, line.script, line.unknown) == (launcher, options, script, ())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("python main.py --dist-url tcp://127.0.0.1:23456 --batch 65", ["python main.py --dist-url tcp://10.0.0.1:29500 --batch 64"] * 2),
        ("torchrun --nnodes=2 --node_rank 0 --max_restarts 3 --master_addr x t.py 'a b'",
         [f"torchrun --master_port=29500 --nnodes=2 --node_rank={rank} --max_restarts=3 --master_addr=10.0.0.1 t.py 'a b'"
          for rank in (0, 1)]),
        ("A=b torchrun --rdzv-backend=c10d --nnodes=1:4 --rdzv-endpoint=localhost:1 t.py",
         ["A=b torchrun --rdzv-backend=c10d --nnodes=1:4 --rdzv-endpoint=10.0.0.1:29500 t.py"] * 2),
    ],
)  # fmt: skip
def test_what_must_change_is_changed_and_nothing_else(text: str, lines: list[str]) -> None:
    assert corrected(text) == lines


def test_ranks_are_cut_to_the_gpus_that_a_host_has() -> None:
    first, second = corrected("torchrun --nnodes=2 --node_rank=0 --nproc_per_node=4 t.py", {"n0": 4, "n1": 2})
    assert ("--nproc_per_node=4" in first, "--nproc_per_node=2" in second) == (True, True)


def test_a_line_of_one_word_with_an_open_quote_is_refused() -> None:
    with pytest.raises(UsageError, match="has an unmatched quote"):
        read_line(["torchrun --nnodes 2 'train.py"])


@given(st.lists(st.one_of(st.sampled_from([
    *("torchrun", "python", "-m", "torch.distributed.run", "accelerate", "launch", "srun", "--nnodes", "--nnodes=1:2", "env"),
    *("--rdzv_endpoint=[::1]:5", "--batch=7", "tcp://localhost:1", "--dist-url", "A=b", "--", "-", "--=", "x.py", "--m"),
]), st.text(max_size=8)), max_size=9))  # fmt: skip
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        line = read_line(words)
    except UsageError:
        return
    for written in own_lines(line, CLUSTER, {}, {}).values():
        assert shlex.split(str(joined(written))) == [*written]


@given(st.lists(st.sampled_from(
    ["--nnodes=2", "--node_rank=1", "--max-restarts=3", "--role=a b", "--tee=3", "--no-python"]), unique=True
))  # fmt: skip
def test_a_written_line_reads_as_it_was(options: list[str]) -> None:
    line = read_line(["torchrun", *options, "t.py", "--x=1"])
    again = read_line(line.written({}, line.script, {}))
    assert (again.options, again.script) == (line.options, line.script)


def test_the_line_stands_behind_dashes() -> None:
    line = ("torchrun", "t.py")
    assert behind_dashes(["h.yaml", *line], ["x", "check", "h.yaml", "--", *line]) == ("h.yaml", line)
    assert behind_dashes(line, ["x", "check", "-w", "a", "--", *line]) == (None, line)
    assert behind_dashes(["h.yaml"], ["x", "check", "h.yaml"]) == ("h.yaml", ())
    for words, argv in (
        (["h", "t"], ["x", "h", "t"]),
        (["h"], ["x", "h", "--"]),
        (["h", "a.sh"], ["x", "h", "--", "a.sh"]),
    ):
        with pytest.raises(UsageError):
            behind_dashes(words, argv)


def test_port_0_of_an_endpoint_is_not_the_port_to_test() -> None:
    line = "torchrun --nnodes=2 --rdzv_backend c10d --rdzv_endpoint=localhost:{} -m torchtitan.train"
    assert [read_line(line.format(port).split()).master["MASTER_PORT"] for port in (0, 29501)] == ["", "29501"]


@pytest.mark.parametrize(
    ("options", "addr", "port"),
    [
        ("--rdzv_backend=c10d --rdzv_endpoint=node1", "node1", "29400"),
        ("--rdzv_backend=c10d --rdzv_endpoint=[fd00::1]", "fd00::1", "29400"),
        ("--rdzv_backend=c10d --rdzv_endpoint=[fd00::1]:29500", "fd00::1", "29500"),
        ("--rdzv_backend=c10d --rdzv_endpoint=$ENDPOINT", "", ""),
        ("--rdzv_backend=etcd-v2 --rdzv_endpoint=etcd", "etcd", ""),
        ("--master_addr=node1", "node1", ""),
    ],
)
def test_a_c10d_endpoint_without_a_port_means_port_29400(options: str, addr: str, port: str) -> None:
    """As parse_rendezvous_endpoint in torch/distributed/elastic/rendezvous/utils.py has it."""
    line = read_line(f"torchrun --nnodes=2 {options} t.py".split())
    assert line.master == {"MASTER_ADDR": addr, "MASTER_PORT": port}
