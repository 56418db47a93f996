"""The host's libnccl chose an interface other than the one that nccl-doctor predicted, or failed unexpectedly.

What it means: if libnccl chose another interface, the job is not affected. NCCL will use the interface that libnccl
reported, and all other diagnoses are based on this interface. Either nccl-doctor's model of the host's NCCL version is
wrong, or something else changes NCCL's choice, such as an NCCL environment plugin or a patched build. If libnccl
failed, the report shows libnccl's message, and NCCL might fail in the job in the same way.

How we know: in a short-lived process with the job's environment variables, the host's libnccl created a unique ID,
which contains the address of the interface. nccl-doctor's model made its prediction from the same addresses, variables
and NCCL version.

Fix: if libnccl failed, find the cause of its error first. Please also report the unexpected result as a bug in
nccl-doctor, and attach the snapshot that `nccl-doctor check --save` writes.
"""

from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold


@check("NCD218", severity=Severity.INFO)
def ifname_model_differs(view: View) -> Findings:
    differing: dict[bool, dict[str, str]] = {}
    for name, entry in view.nccl.by_host.items():
        if entry.disagreement is not None:
            differing.setdefault(entry.source == "model", {})[name] = entry.disagreement
    for failed, hosts in differing.items():
        problem = "failed although" if failed else "did not choose the interface that"
        cause = "Find the cause of libnccl's error first, because NCCL might fail in the job in the same way."
        yield Finding(
            hosts=tuple(hosts),
            message=f"On {fold(hosts)}, libnccl {problem} nccl-doctor predicted{' an interface' if failed else ''}.",
            evidence=folded(hosts.items()),
            facts=dict(hosts),
            fix=f"{cause if failed else 'The job needs no change.'} Please report this, with a snapshot from check "
            "--save.",
        )
