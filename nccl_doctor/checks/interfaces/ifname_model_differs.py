"""The host's libnccl chose a different interface from the predicted one, or failed where success was predicted.

What it means: nothing for the job itself, since NCCL will use the interface that libnccl reported, and all other
diagnoses are based on it. But either nccl-doctor's model of this NCCL version is wrong, or something unknown changes
NCCL's choice, such as an NCCL environment plugin or a patched build. If libnccl failed, its message is shown; the job's
NCCL may fail in the same way.

How we know: the host's libnccl was loaded in a short-lived process with the job's environment variables, and asked for
a unique id, which names the interface; the model was given the same addresses, variables and version.

Fix: please report it with the output of `nccl-doctor check --save`, so that the model can be corrected.
"""

from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold


@check("NCD218", severity=Severity.INFO)
def ifname_model_differs(view: View) -> Findings:
    pictures = view.nccl.by_host
    if differing := {name: one.disagreement for name, one in pictures.items() if one.disagreement is not None}:
        yield Finding(
            hosts=tuple(differing),
            message=f"On {fold(differing)}, libnccl did not choose the interface that nccl-doctor predicted.",
            evidence=folded(differing.items()),
            facts=dict(differing),
            fix="The job needs no change. Please report this, with a snapshot from check --save.",
        )
