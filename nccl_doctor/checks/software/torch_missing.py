"""The job's Python interpreter has no torch, or has a build of torch that can't use the host's GPUs.

What it means: on the host, `python -m torch.distributed.run` fails immediately with "No module named torch", while the
other hosts wait until their rendezvous times out. With a build of torch without CUDA, the job fails with "Torch not
compiled with CUDA enabled", or silently trains on the CPU.

How we know: the check reads the package metadata of the training interpreter that a non-interactive SSH command would
run. A conda or virtual environment that your login shell activates in `.bashrc` is not active in a non-interactive
command. If nvidia-smi lists GPUs that the job may use, the check reads from torch/version.py whether torch was built
for CUDA or ROCm.

Fix: in the hosts file, name an interpreter that has torch (such as `python: /opt/train/bin/python`, for all hosts or
for one host), or install torch for the current interpreter.
"""

from nccl_doctor.checks.effects import STARTING
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import visible_gpus
from nccl_doctor.text.hostlist import fold, grouped


@check("NCD501", phrase="no torch", severity=Severity.ERROR, needs=("torch", "python"), explains=(STARTING,))
def torch_missing(view: View) -> Findings:
    """Yield one finding per interpreter without torch, and one per CPU-only torch on hosts with GPUs."""
    present = view.hosts_by(lambda facts: known(facts.python).executable if known(facts.torch) else None)
    lacking = view.hosts_by(lambda facts: None if known(facts.torch) else known(facts.python).executable)
    for executable, hosts in lacking.items():
        # the only path at which torch was found on other hosts may exist on this host, too
        elsewhere = set(present) - {executable}
        python = next(iter(elsewhere)) if len(elsewhere) == 1 else "/path/to/python"
        others = [f"torch is there: {', '.join(names)} ({path})" for path, names in present.items()]
        yield Finding(
            hosts=hosts,
            message=f"torch is not installed for {executable} on {fold(hosts)}, so torchrun can't start.",
            evidence=(f"asked {executable}: no package torch in its metadata", *others),
            facts={"python": executable},
            fix=f'In the hosts file ("python: {python}") or with --python, name an interpreter that has torch, or '
            "install torch for this one.",
        )
    yield from _without_cuda(view)


def _without_cuda(view: View) -> Findings:
    """Yield one finding per CPU-only build of torch, with the hosts whose GPUs it can't use."""
    idle: list[tuple[tuple[str, str], str]] = []
    for host, facts in view.facts:
        torch, gpus = known(facts.torch), visible_gpus(host.node, facts)
        if torch is not None and gpus and torch.cuda is None and torch.hip is None:
            idle.append(((torch.version, gpus[0].name), host.name))
    for (version, name), hosts in grouped(idle).items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"torch {version} on {fold(hosts)} was built without CUDA and can't use the GPUs there ({name}).",
            evidence=(f"{fold(hosts)}: torch {version}: cuda is None",),
            facts={"torch": version},
            fix="Install a CUDA build of torch in that environment (pip's default on Linux, or with --index-url "
            "https://download.pytorch.org/whl/cu128).",
        )


ADVICE = make_advice(
    "The Python of {who} has no torch, or a torch that was built without CUDA or NCCL.",
    "Install a torch built for this CUDA version in the environment in which the job runs. Check the hosts:",
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
