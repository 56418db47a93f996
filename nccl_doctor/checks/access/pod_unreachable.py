"""A pod is running, but kubectl could not enter it.

What it means: nothing is known about the pod. Either the permission to create ``pods/exec`` is missing (some sites
grant it to nobody), or the kubelet of the pod's node does not answer or can't be reached, or the container has no
shell.

How we know: ``kubectl exec`` was started for the container in which the job runs, and the container's shell should have
printed a marker first, but no marker arrived. The evidence is kubectl's messages and how long it was silent. If the
link to a node is down, kubectl stays silent for minutes, so the wait has its own limit (``--connect-timeout``).

Fix: depends on the reason; if the permission is missing, ask the cluster's administrator for it in the job's namespace.

References: kubectl-exec(1). Kubernetes, "Authorization Overview": the verb for ``pods/exec`` is create.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity


@check("NCD108", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_unreachable(view: View) -> Findings:
    return of_engine(view, "pod-unreachable")
