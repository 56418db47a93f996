"""Why a step did not start, in Slurm's words and ours."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from nccl_doctor.snapshot import EngineFacts, EngineFailure
from nccl_doctor.snapshot.slurm import SlurmOptions
from nccl_doctor.text.hostlist import expand

KIND = "step-not-started"
_ASKING_S = 5.0
_IDLE = re.compile("lacks support for cpu binding|Application launch failed|Job step aborted|forcing job termination")
"""What follows from others of srun's lines, or means nothing here."""
_STATE = re.compile(r"\bState=(\S+)")
_WHY = re.compile(r"\bReason=(.+?)(?: \[.*)?$", re.MULTILINE)


class _Cause(NamedTuple):
    """What srun says, and what that means."""

    reason: str
    pattern: str
    detail: str
    remedy: str


_CAUSES = (
    _Cause(
        "slurmd",
        r"Communication connection failure|failed on node|Unable to contact slurmd|Connection timed out|Zero Bytes",
        "did not start the step: its slurmd does not answer",
        "See on the node whether slurmd runs (systemctl status slurmd) and whether its log tells why not; a job there "
        "won't start either. Leave the node out with -x, or resubmit with sbatch --exclude.",
    ),
    _Cause(
        "ended",
        r"has expired|Invalid job id|already completing|Job/step already",
        "did not start the step: the job has ended",
        "Check within a job that runs; squeue --me lists yours.",
    ),
    _Cause(
        "denied",
        r"Access/permission denied|Invalid user|User not permitted",
        "did not start the step: Slurm lets only the job's own user in",
        "Run nccl-doctor as the user of the job.",
    ),
    _Cause(
        "container",
        r"pyxis: .*(?:failed|could|error|couldn't|not found)|enroot",
        "did not start the step's container",
        "See that the image's name is right and can be fetched from the node, with srun --container-image alone.",
    ),
    _Cause(
        "option",
        r"unrecognized option|invalid option|Invalid --",
        "did not start the step: srun does not know one of the options",
        "--container-image and --container-name need Slurm's plug-in pyxis on this machine and on the nodes.",
    ),
    _Cause(
        "controller",
        r"Unable to contact slurm controller|Socket timed out|Unable to confirm allocation",
        "did not start the step: Slurm's controller does not answer",
        "See whether scontrol ping answers; where it is only busy, check again.",
    ),
    _Cause(
        "busy",
        r"Requested nodes are busy|temporarily disabled|Requested node configuration is not available",
        "did not start the step: Slurm has no room for it on the node",
        "Wait until the node's other steps end, or start them with --overlap, too.",
    ),
)


def classify(node: str, options: SlurmOptions, said: Sequence[str], *, late: bool, started: bool) -> EngineFailure:
    """The failure that srun's words show, or its silence.

    Args:
        node: where the step was to run.
        options: the job's.
        said: what came on srun's output, lines that are not empty.
        late: it was a deadline.
        started: Slurm has the step.
    """
    lines = [re.sub(r"^srun: (?:error: )?", "", line).strip() for line in said if not _IDLE.search(line)]
    told = (*lines[-4:], *_state(node))
    facts = {"job": options.job, "node": node}
    for cause in _CAUSES:
        if any(re.search(cause.pattern, line) for line in lines):
            return EngineFailure(
                kind=KIND,
                detail=cause.detail,
                remedy=cause.remedy,
                evidence=told,
                facts=EngineFacts.model_validate({**facts, "reason": cause.reason, "late": late}),
            )
    if started:
        here = socket.gethostname().partition(".")[0]
        return EngineFailure(
            kind=KIND,
            detail=f"began the step, and nothing of it came back to this machine ({here})",
            remedy="The nodes dial srun on this machine: let them in on the ports of SrunPortRange in slurm.conf, or "
            "on all where it is not set; or run nccl-doctor inside the job, in its batch script.",
            evidence=told,
            facts=EngineFacts.model_validate({**facts, "reason": "no-way-back", "late": late}),
        )
    detail = "started no step in time" if late else "did not start the step" + (f': "{lines[-1]}"' if lines else "")
    return EngineFailure(
        kind=KIND,
        detail=detail,
        remedy=f"See what srun --jobid={options.job} --overlap -w {node} -N1 -n1 hostname says."
        if re.fullmatch(r"[A-Za-z0-9_.-]+", node)
        else "See what srun with that node says.",
        evidence=told,
        facts=EngineFacts.model_validate({**facts, "reason": "silent" if late else "failed", "late": late}),
    )


def not_run(error: OSError) -> EngineFailure:
    """The program srun could not be started here."""
    return EngineFailure(
        kind=KIND,
        detail=f"was not asked: srun could not be started here: {error.strerror}",
        remedy="Run nccl-doctor where srun works.",
        facts=EngineFacts.model_validate({"reason": "no-srun"}),
    )


def step_exists(job: str, name: str, node: str) -> bool:
    """Whether Slurm has a step of this name on the node."""
    for line in _asked("squeue", "-h", "-s", "-j", job, "-o", "%j %N"):
        step, _, nodes = line.partition(" ")
        if step == name and node in _expanded(nodes):
            return True
    return False


def _state(node: str) -> tuple[str, ...]:
    """What Slurm's controller holds of a node, where that is more than that it works."""
    text = "\n".join(_asked("scontrol", "-o", "show", "node", node))
    state, why = _STATE.search(text), _WHY.search(text)
    plain = state is None or state[1] in ("IDLE", "ALLOCATED", "MIXED")
    if plain and why is None:
        return ()
    return (f"Slurm has the node as {state[1] if state else '?'}{f': {why[1]}' if why else ''}",)


def _asked(*argv: str) -> list[str]:
    """The lines that a command of Slurm's answers; none where it does not: what it could add is then left out."""
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_ASKING_S, check=False, stdin=subprocess.DEVNULL, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()


def _expanded(nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except ValueError:
        return []
