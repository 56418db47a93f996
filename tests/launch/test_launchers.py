from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.launched import Wishes, launched
from nccl_doctor.launch.launchers import commands, default_launcher, start_over_ssh, tcp_script
from nccl_doctor.launch.plan import CheckedHost, LastResults, LaunchPlan, plan
from nccl_doctor.launch.slurm_job import script as slurm_script
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.text import shell
from tests.cli.program import run
from tests.patience import LONG_S


def cluster(*counts: int | None, **change: Any) -> Cluster:
    """Nodes with these counts; what a change says is the nodes' where they have such a field, else the cluster's."""
    own = {name: change.pop(name) for name in list(change) if name in Node.model_fields}
    nodes = [
        Node(name=f"node{rank + 1}", address=f"10.0.0.{rank + 1}", node_rank=rank, nproc_per_node=count, **own)
        for rank, count in enumerate(counts)
    ]
    return Cluster(**{"nodes": tuple(nodes), "master_addr": "10.0.0.1", **change})


def job(*counts: int | None, script: tuple[str, ...] = ("train.py",), **change: Any) -> LaunchPlan:
    return plan(cluster(*counts, **change), {}, script)


def lines(job: LaunchPlan, launcher: str, **options: bool) -> list[str]:
    return [one.command for one in commands(job, launcher, **options)]


def test_ranks_follow_the_list_and_gpus_the_devices() -> None:
    nodes = (
        Node(name="a", address="10.0.0.1", node_rank=0, nproc_per_node=2),
        Node(name="big", address="10.0.0.9", node_rank=1, cuda_visible_devices="0,1"),
        Node(name="big-b", address="10.0.0.9", node_rank=2, cuda_visible_devices="2,3"),
    )
    made = plan(Cluster(nodes=nodes, master_addr="10.0.0.1"), {"a": CheckedHost(nproc=2, gpus=0)}, ("train.py",))
    assert [(r.rank, r.host, r.local_rank, r.gpu) for r in made.ranks] == [
        (0, "a", 0, None),
        (1, "a", 1, None),
        (2, "big", 0, "0"),
        (3, "big", 1, "1"),
        (4, "big-b", 0, "2"),
        (5, "big-b", 1, "3"),
    ]
    assert made.world_size == 6


def test_more_ranks_than_gpus_are_refused() -> None:
    four = Node(name="a", address="10.0.0.1", node_rank=0, nproc_per_node=4)
    two = four.model_copy(update={"cuda_visible_devices": "0,1"})
    for node, seen in ((four, {"a": CheckedHost(nproc=4, gpus=2)}), (two, {})):
        with pytest.raises(UsageError, match="a would start 4 ranks but has 2 GPUs; set nproc_per_node to 2"):
            plan(Cluster(nodes=(node,), master_addr="10.0.0.1"), seen, ("train.py",))
    on_cpus = Cluster(nodes=(four,), master_addr="10.0.0.1")
    assert plan(on_cpus, {"a": CheckedHost(nproc=4, gpus=0)}, ("train.py",)).world_size == 4


def test_counts_come_from_the_file_before_the_check_and_are_never_guessed() -> None:
    seen = {"node1": CheckedHost(nproc=8, gpus=8), "node2": CheckedHost(nproc=8, gpus=8)}
    assert [start.nproc for start in plan(cluster(2, None), seen, ("t.py",)).starts] == [2, 8]
    with pytest.raises(UsageError, match="node2 should start is not known"):
        job(1, None)


def test_hosts_named_by_an_option_are_told_what_an_option_says() -> None:
    with pytest.raises(
        UsageError, match=r"give --nproc-per-node N, or run nccl-doctor check -w 'node\[1-2\]' --user ann first"
    ):
        job(None, None, source="-w", access={"ssh": {"user": "ann"}})
    with pytest.raises(UsageError, match=r"give --nproc-per-node N, or run nccl-doctor check h.yaml first"):
        job(None, source="h.yaml")


def test_variables_for_the_next_failure_yield_to_those_of_the_job() -> None:
    made = job(1, env={"NCCL_DEBUG": "WARN"}).with_variables({"NCCL_DEBUG": "INFO", "PYTHONFAULTHANDLER": "1"})
    assert lines(made, "torchrun")[0].startswith("NCCL_DEBUG=WARN PYTHONFAULTHANDLER=1 python3 -m ")


@pytest.mark.parametrize(
    ("script", "name"), [("src/train.py", "train"), ("two words.py", "two_words"), ("-m", "train"), ("..", "train")]
)
def test_a_job_is_named_after_its_script(script: str, name: str) -> None:
    assert job(1, script=(script,)).name == name


@pytest.mark.parametrize("form", ["slurm", "ssh"])
def test_pods_have_lines_of_their_own_alone(form: str) -> None:
    pods = cluster(2, 2, access={"kube": {"namespace": "ml", "pod": "a", "container": "c"}})
    known = LastResults({}, None, ())
    assert len(launched(pods, ("train.py",), Wishes(), known).commands) == 2
    with pytest.raises(UsageError, match=f"--format {form} starts no job in pods; start each pod's line in the pod"):
        launched(pods, ("train.py",), Wishes(form=form), known)


def ssh_line(made: LaunchPlan) -> str:
    return str(start_over_ssh(made.cluster, commands(made, "torchrun")))


def test_one_line_starts_all_hosts_over_ssh(tmp_path: Path) -> None:
    """Stand-ins for ssh and sh's own node: what each host would run, and that one's failure is the whole's."""
    made = job(1, 1, script=("train.py", "it's; $two"), access={"ssh": {"user": "ann", "port": 2222}})
    (tmp_path / "ssh").write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do at=$1; shift; done; at=$at sh -c "$1"\n')
    (tmp_path / "ssh").chmod(0o755)
    asked = shlex.split(ssh_line(made).replace("&", " & "))
    first = asked[asked.index("ssh") : asked.index("&")]
    assert first[:-1] == ["ssh", "-tt", "-n", "-o", "BatchMode=yes", "-p", "2222", "-l", "ann", "10.0.0.1"]
    said = ran(ssh_line(made), tmp_path, 'echo "$at $*"')
    where = "--nproc_per_node=1 --master_addr=10.0.0.1 --master_port=29500"
    assert said == [
        f"10.0.0.{n + 1} -m torch.distributed.run --nnodes=2 --node_rank={n} {where} train.py it's; $two"
        for n in range(2)
    ]
    ran(ssh_line(made), tmp_path, '[ "$at" = 10.0.0.2 ]', ok=False)


def test_this_machine_needs_no_ssh_for_itself(tmp_path: Path) -> None:
    assert ran(ssh_line(job(1, local=True)), tmp_path, 'echo "$2"') == ["torch.distributed.run"]


def test_ctrl_c_ends_what_runs_on_this_machine_too(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nsleep 1000 & echo $!; wait\n")
    (tmp_path / "python3").chmod(0o755)
    words, env = ["sh", "-c", ssh_line(job(1, local=True))], {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        sleeper = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        process.wait(LONG_S)
        assert process.stdout.read() == ""  # the sleeper held it open
    until = time.monotonic() + LONG_S
    while Path(f"/proc/{sleeper}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{sleeper}").exists()


def test_variables_that_the_launcher_sets_are_left_to_it() -> None:
    said = job(1, 1, env={"MASTER_PORT": "29500", "MASTER_ADDR": "node1", "NCCL_DEBUG": "INFO"})
    assert lines(said, "torchrun")[0].startswith("NCCL_DEBUG=INFO python3 -m ")
    with pytest.raises(UsageError, match="MASTER_PORT=1234 under env for node1, and the master port is 29500; take"):
        job(1, 1, env={"MASTER_PORT": "1234"})
    with pytest.raises(UsageError, match="RANK=0 under env for node2, and its rank is 1"):
        job(1, 1, env={"RANK": "0"})


def test_recommended_variables_yield_to_those_of_the_file() -> None:
    seen = {"node1": CheckedHost(nproc=1, variables={"NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1"})}
    node = Node(name="node1", address="10.0.0.1", node_rank=0, env={"GLOO_SOCKET_IFNAME": "eno2"})
    made = plan(Cluster(nodes=(node,), master_addr="10.0.0.1"), seen, ("t.py",))
    assert made.starts[0].variables == {"NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno2"}
    assert lines(made, "torchrun")[0].startswith("NCCL_SOCKET_IFNAME='=eno1' GLOO_SOCKET_IFNAME=eno2 python3 -m ")


def test_static_torchrun_takes_uneven_nodes() -> None:
    where = "--master_addr=10.0.0.1 --master_port=29500 train.py"
    assert lines(job(2, 1), "torchrun") == [
        f"python3 -m torch.distributed.run --nnodes=2 --node_rank=0 --nproc_per_node=2 {where}",
        f"python3 -m torch.distributed.run --nnodes=2 --node_rank=1 --nproc_per_node=1 {where}",
    ]


def test_c10d_names_one_endpoint_one_job_and_each_its_own_address() -> None:
    first, second = (line.split() for line in lines(job(1, 1, master_addr="fd00::1"), "c10d"))
    assert "--rdzv_endpoint=[fd00::1]:29500" in [word.replace("'", "") for word in first]
    assert {w for w in first if "rdzv_id" in w} == {w for w in second if "rdzv_id" in w}
    assert "--local_addr=10.0.0.2" in second
    old = plan(cluster(1, 1), {}, ("t.py",), torch="1.12.1+cu116")
    assert "--local_addr" not in " ".join(lines(old, "c10d"))


@pytest.mark.parametrize(("launcher", "why"), [("launch", "nodes times processes"), ("tcp", "multiplies nodes")])
def test_what_can_not_express_uneven_nodes_says_so(launcher: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        commands(job(2, 1), launcher)


def test_use_env_is_passed_on() -> None:
    assert "--use_env" not in lines(job(1), "launch")[0]
    assert lines(job(1), "launch", use_env=True)[0].endswith("--use_env train.py")


@pytest.mark.parametrize(
    ("torch", "launcher"),
    [
        (None, "torchrun"),
        ("2.13.0+cpu", "torchrun"),
        ("1.8.2", "launch"),
        ("1.13", "torchrun"),
        ("1.9.0a0", "torchrun"),
    ],
)
def test_the_default_follows_torch(torch: str | None, launcher: str) -> None:
    assert default_launcher(torch) == launcher


def ran(line: str, folder: Path, program: str, ok: bool = True) -> list[str]:
    (folder / "python3").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "python3").chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", line],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert (done.returncode == 0) is ok, done.stderr
    return sorted(done.stdout.splitlines())


SAY = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $*"'


def test_env_starts_every_rank_of_a_node_from_one_line(tmp_path: Path) -> None:
    made = job(2, 2, script=("train.py", "two words"))
    first, second = lines(made, "env")
    assert ran(first, tmp_path, SAY) == [
        "0 0 4 10.0.0.1:29500 train.py two words",
        "1 1 4 10.0.0.1:29500 train.py two words",
    ]
    assert [line.split()[:2] for line in ran(second, tmp_path, SAY)] == [["2", "0"], ["3", "1"]]


def test_a_rank_that_fails_fails_the_line(tmp_path: Path) -> None:
    ran(lines(job(2), "env")[0], tmp_path, '[ "$RANK" = 1 ]', ok=False)


def test_tcp_tells_a_spawning_script_its_node(tmp_path: Path) -> None:
    _, second = lines(job(4, 4), "tcp")
    assert second == "python3 train.py --dist-url tcp://10.0.0.1:29500 --world-size 2 --rank 1"


def test_tcp_fills_in_what_the_script_calls_otherwise(tmp_path: Path) -> None:
    script = ("train.py", "--init_method={url}", "--rank", "{rank}", "--world_size", "{world_size}", "{other}")
    assert ran(lines(job(2, 1, script=script), "tcp")[0], tmp_path, 'echo "$*"') == [
        f"train.py --init_method=tcp://10.0.0.1:29500 --rank {rank} --world_size 3 {{other}}" for rank in (0, 1)
    ]


OWN = ("--world-size", "1", "--rank=0")


@pytest.mark.parametrize(
    ("own", "line", "said"),
    [
        (
            ("--dist-url", "tcp://127.0.0.1:23456", *OWN, "-a", "resnet50"),
            "--dist-url tcp://10.0.0.1:29500 --world-size 2 --rank=1 -a resnet50",
            (
                "--dist-url tcp://127.0.0.1:23456 by tcp://10.0.0.1:29500, for that is an address of each host itself; "
                "--world-size 1 by 2; --rank 0 by each host's own"
            ),
        ),
        (
            ("--init_method=tcp://10.0.0.7:29500",),
            "--init_method=tcp://10.0.0.1:29500 --world-size 2 --rank 1",
            "--init_method tcp://10.0.0.7:29500 by tcp://10.0.0.1:29500",
        ),
        (("--dist-url", "tcp://node1:29500"), "--dist-url tcp://node1:29500 --world-size 2 --rank 1", None),
        (("--dist-url", "file:///nfs/meet"), "--dist-url file:///nfs/meet --world-size 2 --rank 1", None),
    ],
)
def test_tcp_puts_the_masters_url_in_place_of_another_and_says_so(
    own: tuple[str, ...], line: str, said: str | None
) -> None:
    made = job(4, 4, script=("main.py", *own))
    assert lines(made, "tcp")[1] == f"python3 main.py {line}"
    assert tcp_script(made)[1] == (() if said is None else (f"replaced in the script's arguments: {said}",))


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]))


@given(st.lists(TEXT, max_size=4))
def test_every_argument_arrives_as_it_was(words: list[str]) -> None:
    made = job(1, script=("train.py", *words))
    line = lines(made, "torchrun")[0]
    assert shlex.split(line)[-len(words) - 1 :] == ["train.py", *words]


@given(TEXT)
def test_a_word_is_one_word_for_the_shell(text: str) -> None:
    assert shlex.split(shell.word(text)) == [text]
    (assigned,) = shell.assignments({"NAME": text})
    assert shlex.split(str(assigned)) == [f"NAME={text}"]


FAKE_SRUN = """\
while [ "${1#--}" != "$1" ]; do shift; done
n=0; for host in node1 node2; do SLURM_NNODES=2 SLURM_NODEID=$n SLURMD_NODENAME=$host "$@" || exit 1; n=$((n+1)); done
"""


def slurm_run(text: str, folder: Path) -> list[str]:
    """What each node's interpreter is called with, under stand-ins for Slurm's two programs."""
    for name, content in {
        "srun": FAKE_SRUN,
        "scontrol": "printf 'node1\\nnode2\\n'",
        "python3": 'echo "$NCCL_DEBUG $*"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{content}\n")
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=LONG_S, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("counts", "procs"), [((8, 8), ("8", "8")), ((8, 4), ("8", "4"))])
def test_a_batch_script_starts_each_node_once(counts: tuple[int, ...], procs: tuple[str, str], tmp_path: Path) -> None:
    made = job(*counts, script=("train.py", "it's two words"))
    nodes = tuple(node.model_copy(update={"env": {"NCCL_DEBUG": "INFO"}}) for node in made.cluster.nodes)
    made = plan(made.cluster.model_copy(update={"nodes": nodes}), {}, made.script)
    text = str(slurm_script(made))
    assert "#SBATCH --nodelist=node[1-2]\n" in text
    assert ("#SBATCH --gpus-per-node=8\n" in text) == (counts == (8, 8))
    assert slurm_run(text, tmp_path) == [
        f"INFO -m torch.distributed.run --nnodes=2 --node_rank={rank} --nproc_per_node={procs[rank]} "
        "--master_addr=node1 --master_port=29500 train.py it's two words"
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(("torch", "own"), [(None, "--local_addr=node{} "), ("1.13.1", "")])
def test_a_batch_script_has_c10d_number_the_nodes(torch: str | None, own: str, tmp_path: Path) -> None:
    made = replace(job(8, 8), torch=torch)
    assert slurm_run(str(slurm_script(made, c10d=True)), tmp_path) == [
        f" -m torch.distributed.run --nnodes=2 {own.format(node)}--nproc_per_node=8 --rdzv_backend=c10d "
        f"--rdzv_endpoint=node1:29500 --rdzv_id=job-7 --rdzv_conf=is_host={int(node == 1)} train.py"
        for node in (1, 2)
    ]
    with pytest.raises(UsageError, match=r"torch 1\.8\.0 has no c10d rendezvous"):
        slurm_script(replace(made, torch="1.8.0"), c10d=True)


def test_a_batch_script_lists_no_nodes_that_have_addresses_for_names(tmp_path: Path) -> None:
    names = ("fe80::1%eth0", "fd00::2")
    nodes = [{"name": name, "address": name, "node_rank": r, "nproc_per_node": 8} for r, name in enumerate(names)]
    made = plan(Cluster.model_validate({"nodes": nodes, "master_addr": "fd00::2"}), {}, ("train.py",))
    text = str(slurm_script(made))
    assert "--nodelist" not in text
    assert len(slurm_run(text, tmp_path)) == 2


def test_gpus_are_those_that_were_looked_at_or_named() -> None:
    seen = {"node1": CheckedHost(nproc=2, gpus=4)}
    assert [place.gpu for place in plan(cluster(2, 2), seen, ("t.py",)).ranks] == ["0", "1", None, None]
    named = cluster(2, 2, cuda_visible_devices="2,5")
    assert [place.gpu for place in plan(named, {}, ("t.py",)).ranks] == ["2", "5", "2", "5"]


def test_slurm_refuses_what_one_script_can_not_say() -> None:
    twice = [
        {"name": n, "address": "10.0.0.9", "node_rank": r, "cuda_visible_devices": d}
        for r, (n, d) in enumerate([("a", "0"), ("b", "1")])
    ]
    made = plan(Cluster.model_validate({"nodes": twice, "master_addr": "10.0.0.9"}), {}, ("t.py",))
    with pytest.raises(UsageError, match="two nodes"):
        slurm_script(made)
    assert json.dumps([r.gpu for r in made.ranks]) == '["0", "1"]'


@pytest.mark.parametrize("form", ["shell", "ssh", "slurm"])
def test_no_line_holds_a_secret(tmp_path: Path, form: str) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "nproc_per_node: 1\nhosts: [a, b]\nenv: {HF_TOKEN: hf_1234567890abcdef, A: b}\n"
    )
    done = run("launch", "hosts.yaml", "--format", form, "--", "t.py", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "hf_1234" not in done.stdout + done.stderr
    assert 'HF_TOKEN="$HF_TOKEN"' in done.stdout
    assert "secrets are not printed: export HF_TOKEN" in done.stdout + done.stderr
