"""``launch`` and ``diff`` on the command line, without any host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.cli.options import KeepOptions
from nccl_doctor.cli.snapshots import keep, read_snapshot, write_hosts
from nccl_doctor.errors import DoctorError
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Severity
from tests.checks.snapshots import UNREACHABLE, patched
from tests.cli.program import assert_one_sentence, run

HOSTS = "nproc_per_node: 2\nhosts: [node1, node2]\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    return tmp_path


def started(folder: Path, *arguments: str) -> tuple[str, str]:
    done = run("launch", *arguments, cwd=folder, XDG_STATE_HOME=str(folder / "state"))
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_lines_go_to_stdout_and_doubts_to_stderr(hosts: Path) -> None:
    out, err = started(hosts, "hosts.yaml", "--", "train.py", "--epochs", "3")
    assert "python3 -m torch.distributed.run --nnodes=2 --node_rank=1 " in out
    assert out.rstrip().endswith("train.py --epochs 3")
    assert err == "warning: hosts.yaml has not been checked yet; run: nccl-doctor check hosts.yaml\n"


def test_each_line_may_check_all_nodes_first(hosts: Path) -> None:
    out, _ = started(hosts, "hosts.yaml", "--preflight", "--", "train.py")
    check = "nccl-doctor check --join --nnodes 2 --node-rank {} --master-addr node1 --master-port 29500 --nproc-per-node 2 --python python3 && python3 -m torch.distributed.run --nnodes=2 --node_rank={} "
    for rank in range(2):
        assert check.format(rank, rank) in out
    assert "# NCDOCTOR_TOKEN must be the same on all nodes, in the environment of each line" in out
    out, _ = started(hosts, "hosts.yaml", "--preflight", "--format", "ssh", "--", "train.py")
    assert "# NCDOCTOR_TOKEN must be the same on all nodes, exported at the top of ~/.bashrc" in out
    script, err = started(hosts, "hosts.yaml", "--preflight", "--format", "slurm", "--", "train.py")
    assert "\nsrun nccl-doctor check --join --python python3\nsrun --kill-on-bad-exit=1 " in script
    assert "the check needs NCDOCTOR_TOKEN in the environment of sbatch" in err
    done = run("launch", "hosts.yaml", "--preflight", "--launcher", "env", "--", "train.py", cwd=hosts)
    assert_one_sentence(done, "--preflight is for torchrun, c10d, launch and --format slurm")


def test_names_stand_for_a_file(hosts: Path) -> None:
    done = run("launch", "-w", "node[1-2]", "--", "train.py", cwd=hosts, XDG_STATE_HOME=str(hosts))
    assert_one_sentence(done, "how many ranks node[1-2] should start is not known: give --nproc-per-node N")
    out, _ = started(hosts, "-w", "node[1-2]", "--nproc-per-node", "2", "--", "train.py")
    assert "--node_rank=1 --nproc_per_node=2 --master_addr=node1 " in out


def test_a_loopback_url_of_the_scripts_own_gives_way_and_is_named_once(hosts: Path) -> None:
    script = ("--", "main.py", "--dist-url", "tcp://127.0.0.1:23456")
    out, err = started(hosts, "hosts.yaml", "--launcher", "tcp", *script)
    assert err.count("--dist-url tcp://127.0.0.1:23456 by tcp://node1:29500, for that is an address of each host") == 1
    assert (out.count("--dist-url tcp://node1:29500"), out.count("--dist-url")) == (2, 2)


def test_what_python_cannot_read_is_refused(hosts: Path) -> None:
    done = run("launch", "hosts.yaml", "--", "./train.sh", cwd=hosts, XDG_STATE_HOME=str(hosts))
    assert_one_sentence(done, "./train.sh is a shell script; give the Python script that it starts")


def test_slurms_own_list_stands_for_a_file(hosts: Path) -> None:
    slurm = {"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_GPUS_ON_NODE": "2", "XDG_STATE_HOME": str(hosts)}
    done = run("launch", "--", "train.py", cwd=hosts, **slurm)
    assert "gpu[1-2]" in done.stdout + done.stderr
    assert "train.py: " not in done.stderr


def test_json_is_a_document(hosts: Path) -> None:
    document = json.loads(started(hosts, "hosts.yaml", "--format", "json", "--rdzv", "--", "train.py")[0])
    assert document["launcher"] == "c10d"
    assert [one["host"] for one in document["commands"]] == ["node1", "node2"]


def test_one_line_for_ssh_and_the_next_failures_records(hosts: Path) -> None:
    said = ("hosts.yaml", "--format", "ssh", "--diagnosable", "--", "train.py", "--batch", "63")
    out, err = started(hosts, *said)
    assert err.startswith(
        "warning: --batch 63 does not divide evenly among 4 ranks; the nearest batch sizes that do are 60 and 64"
    )
    (line,) = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert line.count("ssh -tt -n -o BatchMode=yes node") == 2
    assert "NCCL_DEBUG_FILE=/tmp/train-" in line
    assert "# here, for all hosts:\n(set --;" in out
    assert "\n# after a failure, on each host: nccl-doctor logs /tmp/train-" in out


def test_lines_for_containers_say_so_and_none_is_started_from_here(hosts: Path) -> None:
    said = ("hosts.yaml", "--inside", "docker:train")
    done = run("launch", *said, "--", "train.py", cwd=hosts)
    assert '# on node1, in the Docker container "train", rank' in done.stdout
    for form in ("ssh", "slurm"):
        refused = run("launch", *said, "--format", form, "--", "train.py", cwd=hosts)
        assert_one_sentence(refused, f"--format {form} starts no job in a container")


def test_slurm_is_a_script(hosts: Path) -> None:
    out, _ = started(hosts, "hosts.yaml", "--format", "slurm", "--master-port", "29511", "--", "train.py")
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "MASTER_PORT=29511" in out
    out, _ = started(hosts, "hosts.yaml", "--format", "slurm", "--rdzv", "--", "train.py")
    assert "--rdzv_backend=c10d --rdzv_endpoint=" in out


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("hosts.yaml",), "no script given"),
    (("hosts.yaml", "--batch-size", "65", "--", "t.py"), "the nearest batch sizes that do are 64 and 68"),
    (("hosts.yaml", "--rdzv", "--launcher", "env", "--", "t.py"), "--rdzv means --launcher c10d"),
    (("nope.yaml", "--", "t.py"), "nope.yaml: no such file"),
    (("hosts.yaml", "t.py", "--", "--epochs"), "unexpected argument t.py"),
    (("hosts.yaml", "--", "python", "t.py"), "leave out python"),
    (("hosts.yaml", "--", "/opt/bin/python3.11", "t.py"), "leave out /opt/bin/python3.11"),
    (("hosts.yaml", "--", "torchrun", "--nnodes=2", "t.py"), "leave out torchrun"),
    (("hosts.yaml", "--launcher", "env", "--format", "slurm", "--", "t.py"), "--launcher env has no batch script"),
    (("hosts.yaml", "--launcher", "tcp", "--format", "slurm", "--", "t.py"), "--launcher tcp has no batch script"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_a_slip_is_one_sentence(hosts: Path, arguments: tuple[str, ...], words: str) -> None:
    assert_one_sentence(run("launch", *arguments, cwd=hosts), words)


def test_diff_of_two_snapshots(tmp_path: Path) -> None:
    keep(patched({}), KeepOptions(tmp_path / "a.json", save_whole=True))
    keep(patched({"hosts": {"node2": {"facts": {"torch": None}}}}), KeepOptions(tmp_path / "b.json", save_whole=True))
    same = run("diff", "a.json", "a.json", cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "Nothing changed.\n")
    other = run("diff", "a.json", "b.json", cwd=tmp_path)
    assert other.returncode == 1
    assert other.stdout.startswith("new   error NCD501 torch-missing on node2: ")
    assert "\nnode2\n  torch: 2.9.1+cu128 -> none\n" in other.stdout
    assert_one_sentence(run("diff", "a.json", "nope.json", cwd=tmp_path), "nope.json: can't be read")


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = patched({"hosts": {"node1": {"node": {"env": {"HF_TOKEN": "hush"}}}}})
    keep(snapshot, KeepOptions(tmp_path / "seen.json"))
    assert (
        "left out user names (1), values of variables (1: HF_TOKEN); --save-whole keeps them" in capsys.readouterr().err
    )
    assert "hush" not in (tmp_path / "seen.json").read_text()
    assert read_snapshot(tmp_path / "seen.json").cluster == snapshot.cluster
    assert (tmp_path / "seen.json").stat().st_mode & 0o777 == 0o600


AWAY: dict[str, Any] = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "x", "facts": UNREACHABLE}}
LOW = {"facts": {"limits": {"nofile_soft": 256}}}


@pytest.mark.parametrize(
    ("least", "passed"),
    [(Severity.ERROR, ["node1", "node2"]), (Severity.WARNING, ["node1"]), (None, ["node1", "node2"])],
)
def test_hosts_that_passed_and_failed(tmp_path: Path, least: Severity | None, passed: list[str]) -> None:
    patch = {"hosts": {"node2": LOW, "node3": AWAY}, "mesh": {"$skipped": "x"}, "smoke": {"$skipped": "x"}}
    report = judge(patched(patch), "check")
    write_hosts(report, tmp_path / "passed.txt", tmp_path / "failed.txt", least)
    assert (tmp_path / "passed.txt").read_text().split() == passed
    assert (tmp_path / "failed.txt").read_text().split() == sorted({"node1", "node2", "node3"} - set(passed))
    with pytest.raises(DoctorError, match="can't be written"):
        write_hosts(report, tmp_path / "no" / "passed.txt", None, least)
