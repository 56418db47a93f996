"""The host's libnccl chose an interface other than the one that nccl-doctor predicted, or failed unexpectedly.

What it means: if libnccl chose another interface, the job is not affected. NCCL will use the interface that libnccl
reported, and all other diagnoses are based on this interface. Either nccl-doctor's model of the host's NCCL version is
wrong, or something else changes NCCL's choice, such as an NCCL environment plugin or a patched build. If libnccl
failed, the report shows libnccl's message, and NCCL might fail in the job in the same way.

How we know: in a short-lived process with the job's environment variables, the host's libnccl created a unique ID,
which contains the address of the interface. nccl-doctor's model made its prediction from the same addresses, variables
and NCCL version.

Fix: please report the unexpected result as a bug in nccl-doctor, and attach the snapshot that `nccl-doctor check
--save` writes.
"""

from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold


@check("NCD218", severity=Severity.INFO)
def ifname_model_differs(view: View) -> Findings:
    pictures = view.nccl.by_host
    if differing := {name: entry.disagreement for name, entry in pictures.items() if entry.disagreement is not None}:
        yield Finding(
            hosts=tuple(differing),
            message=f"On {fold(differing)}, libnccl did not choose the interface that nccl-doctor predicted.",
            evidence=folded(differing.items()),
            facts=dict(differing),
            fix="The job needs no change. Please report this, with a snapshot from check --save.",
        )
