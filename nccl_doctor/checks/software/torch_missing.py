"""The interpreter that training uses has no torch.

What it means: `python -m torch.distributed.run` on this host ends at once with "No module named torch", while the
other hosts wait for it until their rendezvous times out.

How we know: the host's training interpreter was asked for the metadata of its installed packages, in the way a
non-interactive SSH command runs it. A conda environment or virtual environment that your login shell activates in
`.bashrc` is not active there.

Fix: name the interpreter of the environment in the hosts file (`python: /opt/train/bin/python`, for all hosts or for
one), or install torch for the interpreter that is named.
"""

from nccl_doctor.checks.effects import STARTING
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity


@check("NCD501", severity=Severity.ERROR, needs=("torch", "python"), explains=(STARTING,))
def torch_missing(view: View) -> Findings:
    """Yields one finding an interpreter that lacks torch, folded over its hosts."""
    present = view.hosts_by(lambda facts: known(facts.python).executable if known(facts.torch) else None)
    lacking = view.hosts_by(lambda facts: None if known(facts.torch) else known(facts.python).executable)
    for executable, hosts in lacking.items():
        # the one path that has torch wherever it was found may be there on this host as well
        elsewhere = set(present) - {executable}
        python = next(iter(elsewhere)) if len(elsewhere) == 1 else "/path/to/python"
        others = [f"torch is there: {', '.join(names)} ({path})" for path, names in present.items()]
        yield Finding(
            hosts=hosts,
            message=f"{executable} has no torch, so torchrun can't start there.",
            evidence=(f"asked {executable}: no package torch in its metadata", *others),
            facts={"python": executable},
            fix=f'Name the interpreter that has torch in the hosts file ("python: {python}") or with --python, or '
            "install torch for this one.",
        )


ADVICE = make_advice(
    "The Python of {who} has no torch, or one without CUDA or NCCL.",
    "Install a build of torch for this CUDA into the very environment that the job runs in:",
)

# No module, or a build without CUDA or NCCL.
RULES = (
    root(
        r"(?:No module named '?torch'?$|doesn't have NCCL built in|Torch not compiled with CUDA enabled"
        r"|is not built with NCCL|No module named '?torch\.distributed)",
        "RuntimeError: Distributed package doesn't have NCCL built in",
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
