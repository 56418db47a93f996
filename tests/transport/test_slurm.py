"""What srun's words mean; they are of Slurm 22.05 and pyxis 0.15. The rest is shown on a real Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.transport.slurm import transport
from nccl_doctor.transport.slurm.transport import KEEPER, classify
from tests.each import each

OPTIONS = SlurmOptions(job="7")

SAID = [
    ("slurmd", ["srun: error: Task launch for StepId=1.1 failed on node node2: Communication connection failure"]),
    ("denied", ["srun: error: Unable to create step for job 1: Access/permission denied"]),
    ("ended", ["srun: error: Slurm job 2 has expired", "srun: Check SLURM_JOB_ID environment variable."]),
    ("ended", ["srun: error: Unable to confirm allocation for job 99: Invalid job id specified"]),
    ("option", ["srun: unrecognized option '--container-image=pytorch'", 'Try "srun --help" for more information']),
    ("controller", ["srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"]),
    ("busy", ["srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"]),
    (
        "container",
        [
            "slurmstepd: error: pyxis: container start failed with error code: 1",
            "slurmstepd: error: pyxis: printing enroot log file:",
        ],
    ),
    ("failed", ["srun: error: Unable to create step for job 7: Requested node configuration is not available"]),
    ("failed", ["srun: error: a word that nobody has seen before"]),
]


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_asked", lambda *_argv: [])


@each(SAID, lambda case: case[1][0])
def test_words_of_srun(case: tuple[str, list[str]]) -> None:
    reason, said = case
    failure = classify("node2", OPTIONS, said, late=False, started=False)
    assert failure.facts.model_dump() == {"job": "7", "node": "node2", "reason": reason, "late": False}
    assert not any(line.startswith("srun: ") for line in failure.evidence)
    assert failure.remedy


def test_an_option_that_srun_lacks_is_told_apart_by_who_gave_it() -> None:
    own = classify("node2", OPTIONS, ["srun: unrecognized option '--overlap'"], late=False, started=False)
    assert "Slurm 20.11 or later" in own.remedy
    container = SlurmOptions(job="7", container_image="pytorch")
    given = classify("node2", container, SAID[4][1], late=False, started=False)
    assert "pyxis" in given.remedy


def test_silence_is_told_apart_by_whether_slurm_has_the_step() -> None:
    began = classify("node2", OPTIONS, [], late=True, started=True)
    assert (began.facts.model_dump()["reason"], began.facts.ran_out_of_time) == ("no-way-back", True)
    nothing = classify("node2", OPTIONS, [], late=True, started=False)
    assert (nothing.facts.model_dump()["reason"], nothing.detail) == ("silent", "did not start the job step in time")


NODES = [
    ("NodeName=node2 State=IDLE+DRAIN CPUs=4 Reason=bad disk [root@2026-01-01T00:00:00]", ("IDLE+DRAIN: bad disk",)),
    ("NodeName=node2 State=DOWN* CPUs=4 Reason=Not responding [slurm@2026-01-01T00:00:00]", ("DOWN*: Not responding",)),
    ("NodeName=node2 State=ALLOCATED* CPUs=4", ("ALLOCATED*",)),
    ("NodeName=node2 State=MIXED CPUs=4", ()),
]


@each(NODES, lambda case: case[0])
def test_what_the_controller_holds_of_the_node_is_evidence(case: tuple[str, tuple[str, ...]]) -> None:
    told, words = case
    with pytest.MonkeyPatch.context() as context:
        context.setattr(transport, "_asked", lambda *_argv: [told])
        failure = classify("node2", OPTIONS, [], late=True, started=False)
    assert failure.evidence == tuple(f"Slurm has the node as {word}" for word in words)


def test_the_steps_of_this_run_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["ncdoctor-a node[1-2]", "ncdoctor-b node3", "train node3"]
    monkeypatch.setattr(transport, "_asked", lambda *_argv: listed)
    assert transport.step_exists("7", "ncdoctor-a", "node2")
    assert not transport.step_exists("7", "ncdoctor-a", "node3")


STEP = "ncdoctor-0123456789abcdef"


def kept(tmp_path: Path, word: bytes, *, listed: int, srun: bool = False, late: int = 0) -> list[str]:
    """What a keeper does at a word, where Slurm lists a step so many times, and an srun of it lives or does not.

    The first ``late`` questions to Slurm get no answer in time.
    """
    programs, done, left = tmp_path / "bin", tmp_path / "done", tmp_path / "left"
    programs.mkdir()
    left.write_text("1.0 x\n" * listed)
    asked = tmp_path / "asked"
    asked.write_text("x\n" * late)
    squeue = (
        f'[ -s {asked} ] && {{ sed -i 1d {asked}; exit 124; }}\n[ -s {left} ] && echo "1.0 {STEP}"; sed -i 1d {left}'
    )
    for name, script in {
        "squeue": squeue,
        "scancel": f'echo "$@" >> {done}',
        "sleep": f"echo wait $1 >> {done}",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    done.touch()
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NCDOCTOR_STEP": STEP, "NCDOCTOR_JOB": "1"}
    shutil.copy(shutil.which("sleep") or "", tmp_path / "srun")
    alive = subprocess.Popen([f"srun --job-name={STEP}", "600"], executable=tmp_path / "srun") if srun else None
    try:
        subprocess.run(["/bin/sh", "-c", KEEPER], input=word, env=env, check=False, timeout=60)
        if alive is not None:
            assert alive.wait(10) == -9
    finally:
        if alive is not None:
            alive.kill()
            alive.wait()
    return done.read_text().splitlines()


def test_the_keeper_goes_where_all_is_done(tmp_path: Path) -> None:
    assert kept(tmp_path, b"done\n", listed=1) == []


def test_without_an_srun_to_end_it_a_step_is_ended_at_once_and_gently_first(tmp_path: Path) -> None:
    assert kept(tmp_path, b"", listed=2) == ["-s TERM 1.0", "wait 2", "wait 0.5", "-s KILL 1.0", "wait 0.5"]


def test_an_srun_that_lives_has_three_seconds_to_end_its_step(tmp_path: Path) -> None:
    assert kept(tmp_path, b"", listed=0, srun=True) == ["wait 0.5"] * 7


@pytest.mark.parametrize("late", [2, 5])
def test_a_controller_that_answers_late_is_asked_again(late: int, tmp_path: Path) -> None:
    done = kept(tmp_path, b"now\n", listed=1, late=late)
    assert "-s KILL 1.0" in done


def test_what_is_left_while_we_wait_is_killed(tmp_path: Path) -> None:
    assert kept(tmp_path, b"now\n", listed=1) == ["-s KILL 1.0", "wait 0.5"]
