"""Engines' lines, read by the engines' own parsers where they can be installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.plan import CheckedHost, LaunchPlan, plan
from nccl_doctor.launch.server_lines import engine_commands, engine_notes, own_addresses
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.probe.facts.engines import options_of
from nccl_doctor.probe.options import LAUNCHERS
from tests.cli.program import assert_one_sentence, run
from tests.servers import witness

PARSE = {
    "ray": """
from ray.scripts.scripts import start
parse = lambda words: start.make_context("ray start", words[2:]).params
""",
    "deepspeed": """
from deepspeed.launcher.runner import parse_args
parse = lambda words: vars(parse_args(words[1:]))
""",
    "accelerate": """
from accelerate.commands.launch import launch_command_parser
parse = lambda words: vars(launch_command_parser().parse_args(words[2:]))
""",
    "vllm": """
from tests.servers import absent
import vllm.platforms
vllm.platforms.current_platform.device_type = "cpu"
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parse = lambda words: vars(parser.parse_args(words[2:]))
""",
    "sglang": """
from tests.servers import absent
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parse = lambda words: vars(parser.parse_args(words[3:]))
""",
}


def job(*script: str, gpus: int = 2, names: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")) -> LaunchPlan:
    nodes = tuple(Node(name=name, address=name, node_rank=rank) for rank, name in enumerate(names))
    cluster = Cluster(nodes=nodes, master_addr=names[0], master_port=29500)
    return plan(cluster, dict.fromkeys(names, CheckedHost(nproc=gpus or 1, gpus=gpus)), script)


def lines(of: LaunchPlan, engine: str, **checked: str) -> list[str]:
    return [one.command for one in engine_commands(of, engine, own_addresses(of, checked))]


class OwnParser:
    """An engine's own parser in a process of its own, which imports the engine once for all tests."""

    program = """
import argparse, json, sys
made = []
first = argparse.ArgumentParser.parse_args
argparse.ArgumentParser.parse_args = lambda self, *a, **k: made.append(self) or first(self, *a, **k)
{parse}
for line in sys.stdin:
    found = [parse(words) for words in json.loads(line)]
    options = {{name: one.nargs != 0 for one in made[-1]._actions for name in one.option_strings}} if made else {{}}
    print("\\n" + json.dumps({{"found": found, "options": options}}, default=str), flush=True)
"""

    def __init__(self, engine: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.program.format(parse=PARSE[engine])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**witness.environment(), "PYTHONPATH": f"{witness.packages(engine)}:{Path(__file__).parents[2]}"},
            text=True,
        )

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def read(self, words: list[list[str]]) -> tuple[list[dict[str, Any]], dict[str, bool]]:
        """What it makes of lines, and whether each of its options takes a value, by name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        others: list[str] = []
        for line in self._process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                return told["found"], {
                    name.lstrip("-").replace("-", "_"): takes for name, takes in told["options"].items()
                }
            others.append(line)
        raise AssertionError("".join(others))


Start = Callable[[str], OwnParser]
Parse = Callable[[str, list[str]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def own_parser() -> Iterator[Start]:
    kept: dict[str, OwnParser] = {}

    def start(engine: str) -> OwnParser:
        if engine not in kept:
            kept[engine] = OwnParser(engine)
        return kept[engine]

    yield start
    for one in kept.values():
        one.close()


@pytest.fixture
def parsed(own_parser: Start) -> Parse:
    """What the engine's own parser makes of lines, without the variables in front."""

    def parse(engine: str, made: list[str]) -> list[dict[str, Any]]:
        asked = [[word for word in shlex.split(line.rpartition("&& ")[2]) if not word.isupper()] for line in made]
        return own_parser(engine).read(asked)[0]

    return parse


def test_rays_own_parser_reads_its_lines(parsed: Parse) -> None:
    head, worker = parsed("ray", lines(job(), "ray"))
    assert (head["head"], head["node_ip_address"], head["port"], head["num_gpus"]) == (True, "10.0.0.1", 6379, 2)
    assert (worker["head"], worker["address"], worker["node_ip_address"]) == (False, "10.0.0.1:6379", "10.0.0.2")
    *_, script = lines(job("train.py", "--x"), "ray")
    assert script == "python3 train.py --x"


def test_accelerates_own_parser_reads_its_lines(parsed: Parse) -> None:
    for rank, one in enumerate(parsed("accelerate", lines(job("train.py", "--x", "1"), "accelerate"))):
        assert (one["num_machines"], one["machine_rank"], one["num_processes"]) == (2, rank, 4)
        assert (one["main_process_ip"], one["main_process_port"], one["same_network"]) == ("10.0.0.1", 29500, True)
        assert (one["multi_gpu"], one["cpu"]) == (True, False)
        assert (one["training_script"], one["training_script_args"]) == ("train.py", ["--x", "1"])
    (on_cpus, _) = parsed("accelerate", lines(job("train.py", gpus=0), "accelerate"))
    assert (on_cpus["cpu"], on_cpus["multi_gpu"], on_cpus["num_processes"]) == (False, True, 2)


def test_deepspeeds_own_parser_reads_its_lines_and_its_hostfile(parsed: Parse, tmp_path: Path) -> None:
    made = lines(job("train.py", "--deepspeed", "c.json"), "deepspeed")
    for rank, one in enumerate(parsed("deepspeed", made)):
        assert (one["hostfile"], one["no_ssh"], one["node_rank"]) == ("deepspeed-hosts", True, rank)
        assert (one["master_addr"], one["master_port"]) == ("10.0.0.1", 29500)
        assert (one["user_script"], one["user_args"]) == ("train.py", ["--deepspeed", "c.json"])
    subprocess.run(made[0].partition(" && ")[0], shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "deepspeed-hosts").read_text() == "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"


def test_vllms_own_parser_reads_its_lines(parsed: Parse) -> None:
    for rank, one in enumerate(parsed("vllm", lines(job("org/model", "--port", "8000"), "vllm"))):
        assert (one["model_tag"], one["port"], one["headless"]) == ("org/model", 8000, bool(rank))
        assert (one["tensor_parallel_size"], one["pipeline_parallel_size"]) == (2, 2)
        assert (one["nnodes"], one["node_rank"]) == (2, rank)
        assert (one["master_addr"], one["master_port"]) == ("10.0.0.1", 29500)


def test_sglangs_own_parser_reads_its_lines(parsed: Parse) -> None:
    for rank, one in enumerate(parsed("sglang", lines(job("org/model", "--port", "8000"), "sglang"))):
        assert (one["model_path"], one["port"], one["tp_size"]) == ("org/model", 8000, 4)
        assert (one["nnodes"], one["node_rank"], one["dist_init_addr"]) == (2, rank, "10.0.0.1:29500")

    [one] = parsed("sglang", lines(job("org/model", "--tp", "4", names=("a",)), "sglang"))
    assert one["tp_size"] == 4


@pytest.mark.parametrize(("engine", "line"), [("vllm", "vllm serve m"), ("sglang", "python3 -m s --model-path m")])
def test_what_the_tables_say_of_engines_is_so(engine: str, line: str, own_parser: Start) -> None:
    _, theirs = own_parser(engine).read([line.split()])
    table = LAUNCHERS[engine].options
    whole = {name: next(one for one in (name, *theirs) if one in theirs and one.startswith(name)) for name in table}
    assert {name: theirs[of] for name, of in whole.items()} == table


def test_vllms_and_sglangs_lines() -> None:
    first, second = lines(job("org/model", "--port", "8000"), "vllm")
    assert second == (
        "VLLM_HOST_IP=10.0.0.2 vllm serve org/model --port 8000 --tensor-parallel-size=2 "
        "--pipeline-parallel-size=2 --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=29500 --headless"
    )
    assert "--headless" not in first
    assert lines(job("org/model", "-tp", "4"), "vllm")[0].count("-tp") == 1
    assert "parallel" not in lines(job("org/model", "-tp", "4"), "vllm")[0]
    assert lines(job("org/model"), "sglang") == [
        f"SGLANG_HOST_IP=10.0.0.{rank + 1} python3 -m sglang.launch_server --model-path org/model --tensor-parallel-size=4 "
        f"--nnodes=2 --node-rank={rank} --dist-init-addr=10.0.0.1:29500"
        for rank in range(2)
    ]
    assert lines(job("org/model", names=("a",)), "vllm") == ["vllm serve org/model --tensor-parallel-size=2"]


@pytest.mark.parametrize(
    ("engine", "whole", "rest"),
    [
        ("vllm", ("vllm", "serve", "org/model"), ("org/model",)),
        ("sglang", ("python3", "-m", "sglang.launch_server", "--model-path", "m"), ("--model-path", "m")),
        ("sglang", ("python", "-m", "sglang.launch_server", "--model-path", "m"), ("--model-path", "m")),
        ("deepspeed", ("deepspeed", "train.py"), ("train.py",)),
        ("accelerate", ("accelerate", "launch", "train.py"), ("train.py",)),
    ],
)
def test_a_whole_line_gives_what_its_script_gives(engine: str, whole: tuple[str, ...], rest: tuple[str, ...]) -> None:
    assert lines(job(*whole), engine) == lines(job(*rest), engine)


def test_an_address_that_nobody_knows_is_left_out_and_said() -> None:
    named = job("m", names=("node1", "node2"))
    assert lines(named, "vllm", node2="10.0.0.2")[1].startswith("VLLM_HOST_IP=10.0.0.2 vllm")
    assert lines(named, "vllm", node2="10.0.0.2")[0].startswith("vllm serve")
    (warning,) = engine_notes(named, "vllm", own_addresses(named, {"node2": "10.0.0.2"}))[1]
    assert "node1" in warning
    assert engine_notes(named, "accelerate", {})[1] == []


def test_what_an_engine_can_not_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which model"):
        lines(job(), "vllm")
    (tmp_path / "hosts.yaml").write_text("engine: vllm\nnproc_per_node: 1\nhosts: [10.0.0.1]\n")
    done = run("launch", "hosts.yaml", "--format", "ssh", "--", "m", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert_one_sentence(done, "--format ssh starts no engine")
    done = run("launch", "hosts.yaml", "--engine", "vllama", "--", "m", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert_one_sentence(done, "allowed are vllm, sglang, ray, deepspeed, accelerate")
    done = run("launch", "hosts.yaml", "--", "org/model", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert "\nVLLM_HOST_IP=10.0.0.1 vllm serve org/model --tensor-parallel-size=1" in done.stdout


@pytest.mark.parametrize("engine", ["accelerate", "deepspeed"])
def test_the_tables_are_those_of_the_programs_themselves(engine: str, own_parser: Start) -> None:
    _, theirs = own_parser(engine).read([["program", "launch", "t.py"]])
    assert theirs == LAUNCHERS[engine].options
    assert theirs == options_of(engine, [os.fspath(witness.packages(engine))])
