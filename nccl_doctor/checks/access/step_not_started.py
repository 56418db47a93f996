"""A node of the Slurm job did not start nccl-doctor's job step.

What it means: nccl-doctor could not examine the node. The job's own steps usually fail for the same reason: slurmd or
the job has ended, the node is drained or down, or the container does not start. If the node runs the step but no output
arrives, the connection to the machine that runs nccl-doctor is at fault. A fault in this connection affects the job
only if the job is started from nccl-doctor's machine.

How we know: nccl-doctor starts `srun --jobid=ID --overlap -w NODE -N1 -n1` for each node, and the step should first
print a marker. If srun fails, the evidence quotes srun's error message and shows the node state that Slurm's controller
reports. If no marker arrives within the time limit (`--connect-timeout`, by default 15 s, or 120 s if the step starts
in a container), squeue shows whether the step exists. The corresponding messages in a log are "srun: error: Unable to
create step" and "srun: error: Task launch for StepId=77.0 failed on node n2".

Fix: follow the instructions in the diagnosis, which depend on the cause.

References: srun(1): --overlap. slurm.conf(5): SrunPortRange, SlurmdTimeout. slurmd(8).
"""

import re

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.finding import Severity
from nccl_doctor.text.secrets import part


@check("NCD110", severity=Severity.ERROR, explains=FOLLOWS, scope="slurm")
def step_not_started(view: View) -> Findings:
    return of_engine(view, "step-not-started")


_NOT_LAUNCHED = r"srun: error: (?:Task launch for \S+ failed on node (?P<host>[\w.-]+)|Application launch failed)"


def _advice(case: Case) -> Advice:
    message = case.first.message.removeprefix("srun: ").removeprefix("error: ")
    reason = f"Slurm did not start the job's step: {part(message, 0, 160).rstrip('.')}."
    return advise(reason, next((fix for pattern, fix in _FIXES if pattern.search(case.first.text)), _TOO_LARGE))


_TOO_LARGE = (
    "Ask srun for no more nodes, tasks, GPUs and memory than the allocation has (scontrol show job); where another "
    "step of the job holds them, add --overlap or end that step."
)
_FIXES = (
    (re.compile(r"(?i:layout tasks|requested node configuration)"), _TOO_LARGE),
    (
        re.compile(_NOT_LAUNCHED),
        (
            "See slurmd on the node (systemctl status slurmd, its log), and whether the node and "
            "srun's host reach each other (SrunPortRange)."
        ),
    ),
    (
        re.compile(r"(?i:invalid (?:account|partition|qos)|account/partition)"),
        "Correct -A, -p or -q of the request (sacctmgr show assoc user=$USER; sinfo).",
    ),
    (re.compile(r"(?i:time limit)"), "Ask for no more time (-t) than the partition allows (sinfo -o '%P %l')."),
    (
        re.compile(r"(?i:invalid job id|job/step already complet|expired)"),
        "The job has ended: start it again, and unset SLURM_JOB_ID where the shell has it from an earlier job.",
    ),
)
"""Remedies for srun's reasons."""


RULES = (
    root(_NOT_LAUNCHED, "srun: error: Task launch for StepId=77.0 failed on node n2: Communication connection failure"),
    root(
        r"srun: error: Unable to (?:create step|allocate resources|confirm allocation)",
        "srun: error: Unable to create step for job 77: More processors requested than permitted",
    ),
    hint(
        r"srun: Job \S+ step creation (?:temporarily disabled|still disabled), retrying",
        "srun: Job 77 step creation temporarily disabled, retrying (Requested nodes are busy)",
    ),
)

SIGNS = LogSigns(RULES, _advice)
