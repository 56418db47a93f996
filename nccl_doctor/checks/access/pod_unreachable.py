"""A pod runs, but kubectl could not enter it.

What it means: nothing is known of the pod. The right to create ``pods/exec`` is a high one, and some sites give it to
nobody; else the kubelet of the pod's node or the way to it is dead, or the container has no shell.

How we know: ``kubectl exec`` was started for the container in which the job runs, and its shell is to print a word
first. The word did not come; what kubectl said of that, and how long it said nothing, is the evidence. A link to a node
that is down leaves kubectl silent for minutes, so the wait has an end of its own (``--connect-timeout``).

Fix: follows from the reason; where the right is missing, ask whoever runs the cluster for it in the job's namespace.

References: kubectl-exec(1). Kubernetes, "Authorization Overview": the verb of ``pods/exec`` is create.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity


@check("NCD108", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_unreachable(view: View) -> Findings:
    """Yield one finding for pods with the same failure."""
    return of_engine(view, "pod-unreachable")
