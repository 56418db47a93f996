"""What srun's words mean; they are of Slurm 22.05 and pyxis 0.15. The rest is shown on a real Slurm."""

from __future__ import annotations

import pytest

from nccl_doctor.transport.slurm import SlurmOptions, steps
from nccl_doctor.transport.slurm.steps import classify
from tests.each import each

OPTIONS = SlurmOptions(job="7")

SAID = [
    (
        "slurmd",
        ["srun: error: Task launch for StepId=1.1 failed on node node2: Communication connection failure"],
    ),
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
    ("failed", ["srun: error: a word that nobody has seen before"]),
]


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_asked", lambda *_argv: [])


@each(SAID, lambda case: case[1][0])
def test_words_of_srun(case: tuple[str, list[str]]) -> None:
    reason, said = case
    failure = classify("node2", OPTIONS, said, late=False, started=False)
    assert failure.facts.model_dump() == {"job": "7", "node": "node2", "reason": reason, "late": False}
    assert not any(line.startswith("srun: ") for line in failure.evidence)
    assert failure.remedy


def test_silence_is_told_apart_by_whether_slurm_has_the_step() -> None:
    began = classify("node2", OPTIONS, [], late=True, started=True)
    assert (began.facts.model_dump()["reason"], began.facts.ran_out_of_time) == ("no-way-back", True)
    nothing = classify("node2", OPTIONS, [], late=True, started=False)
    assert (nothing.facts.model_dump()["reason"], nothing.detail) == ("silent", "started no step in time")


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
        context.setattr(steps, "_asked", lambda *_argv: [told])
        failure = classify("node2", OPTIONS, [], late=True, started=False)
    assert failure.evidence == tuple(f"Slurm has the node as {word}" for word in words)


def test_the_steps_of_this_run_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["ncdoctor-a node[1-2]", "ncdoctor-b node3", "train node3"]
    monkeypatch.setattr(steps, "_asked", lambda *_argv: listed)
    assert steps.step_exists("7", "ncdoctor-a", "node2")
    assert not steps.step_exists("7", "ncdoctor-a", "node3")
