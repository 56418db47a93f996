"""A pod of the job has no node, image or running container, is not ready, or has finished.

What it means: a job with a fixed number of ranks waits for all of them. If one pod is missing, the other pods wait and
occupy their GPUs until the rendezvous times out.

How we know: the cluster's list of the job's pods (``kubectl get pods``) shows each pod's phase, the scheduler's
conditions, and the state of the job's container. The scheduler reports the missing resource and the number of affected
nodes. If a pod ends after nccl-doctor has fetched the list of pods, nccl-doctor's attempt to enter the pod fails, and
kubectl's error message gives the reason. If a pod's container is running but the pod is not ready, the diagnosis is
only a warning. A pod that is not ready has no DNS name from a headless Service unless the Service sets
``publishNotReadyAddresses: true``.

Fix: if a resource is scarce, request less of it, wait until enough of it is free, or ask the cluster's administrator to
add nodes. If the image can't be pulled, correct the image's name or the image pull secret. If the container has exited,
find the reason with ``kubectl logs``, or with ``kubectl logs --previous`` if the container has been restarted.

References: Kubernetes, "Pod Lifecycle", "Pod Scheduling Readiness" and "Debug Pods".
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold, grouped, nouns


@check("NCD107", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_not_ready(view: View) -> Findings:
    yield from of_engine(view, "pod-not-ready")
    pods = view.kube.pods
    reached = [host.name for host in view.snapshot.reached if host.name in pods]
    for why, names in grouped((pods[name].unready, name) for name in reached if pods[name].unready).items():
        yield Finding(
            hosts=tuple(names),
            message=f"The job's container is running, but Kubernetes reports {nouns(len(names), 'pod')} {fold(names)} "
            f"as not ready: {why}.",
            facts={"reason": "unready"},
            fix="See which probe fails (kubectl describe pod). Until the pod is ready, a headless Service gives it no "
            "DNS name, unless the Service sets publishNotReadyAddresses: true.",
            severity=Severity.WARNING,
        )
