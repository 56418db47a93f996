"""A pod is running, but kubectl could not enter it.

What it means: nccl-doctor could not examine the pod. Possible causes are a missing permission to create ``pods/exec``
(some sites never grant it), an unreachable kubelet, and a container without a shell.

How we know: ``kubectl exec`` was started for the job's container, but the marker that the container's shell should
print first did not arrive. The report quotes kubectl's last message, or states how long nccl-doctor waited for kubectl.
If the link to a node is down, kubectl prints nothing for minutes, so nccl-doctor has its own time limit
(``--connect-timeout``).

Fix: correct the cause that kubectl's messages show. If the permission to create ``pods/exec`` is missing, ask the
cluster's administrator to grant the permission in the job's namespace.

References: kubectl-exec(1). Kubernetes, "Authorization Overview": the verb for ``pods/exec`` is create.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity


@check("NCD108", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_unreachable(view: View) -> Findings:
    return of_engine(view, "pod-unreachable")
