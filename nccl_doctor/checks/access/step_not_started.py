"""A node of the Slurm job did not start the step that nccl-doctor runs there.

What it means: nothing is known about the node. The job's own steps will usually fail for the same reason: slurmd is
gone, the node is drained or down, the job has ended, or the container does not start. If the node runs the step and
nothing comes back, the fault is in the connection to the machine that runs nccl-doctor, and the job is not affected
unless it is started from there.

How we know: `srun --jobid=ID --overlap -w NODE -N1 -n1` is started for each node, and the step first prints a marker.
Within the limit (`--connect-timeout`, 15 s by default), either srun ended with an error, which the evidence quotes next
to the node's state according to Slurm's controller, or no marker arrived, and squeue shows whether the step exists. In
a log: "srun: error: Unable to create step".

Fix: depends on the reason and is shown with the diagnosis.

References: srun(1): --overlap. slurm.conf(5): SrunPortRange, SlurmdTimeout. slurmd(8).
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.finding import Severity
from nccl_doctor.text.secrets import part


@check("NCD110", severity=Severity.ERROR, explains=FOLLOWS, scope="slurm")
def step_not_started(view: View) -> Findings:
    return of_engine(view, "step-not-started")


def _advice(case: Case) -> Advice:
    said = case.first.message.removeprefix("srun: ").removeprefix("error: ")
    return advise(
        f"Slurm did not start the job's step: {part(said, 0, 160).rstrip('.')}.",
        "Ask srun for no more nodes, tasks, GPUs and memory than the allocation has (scontrol show job); where another "
        "step of the job holds them, add --overlap or end that step.",
    )


RULES = (
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
