"""A pod runs, but kubectl could not enter it.

What it means: nothing is known about the pod. Either the permission to create ``pods/exec`` is missing, which some
sites grant to nobody, or the kubelet of the pod's node does not answer or can't be reached, or the container has no
shell.

How we know: ``kubectl exec`` was started for the container in which the job runs, and its shell should print a marker
first. The marker did not come; kubectl's messages, and how long it was silent, are the evidence. A link to a node that
is down leaves kubectl silent for minutes, so the wait has its own limit (``--connect-timeout``).

Fix: follows from the reason; where the permission is missing, ask the cluster's administrator for it in the job's
namespace.

References: kubectl-exec(1). Kubernetes, "Authorization Overview": the verb of ``pods/exec`` is create.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity


@check("NCD108", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_unreachable(view: View) -> Findings:
    """Yield one finding for pods with the same failure."""
    return of_engine(view, "pod-unreachable")
