"""A pod of the job is not available: it is waiting for a node, an image or a container, or it has finished.

What it means: a fixed-size job waits for all of its ranks, so one missing pod holds up the others, which wait in the
rendezvous until it times out and keep their GPUs occupied.

How we know: the cluster's list of the job's pods (``kubectl get pods``) shows the phase, the conditions set by the
scheduler, and the state of the container in which the job runs. The scheduler reports which resource is short, and on
how many nodes. If a pod has ended since the list was fetched, kubectl reports this when the pod is entered. A pod whose
container is running but which is not ready yields only a warning: such a pod is judged like the others, but a headless
Service gives it no DNS name unless the Service sets ``publishNotReadyAddresses: true``.

Fix: depends on the reason: request less of the scarce resource, wait, or have nodes added; correct the image's name or
the registry's secret; or find out why the container exits (``kubectl logs --previous``).

References: Kubernetes, "Pod Lifecycle", "Pod Scheduling Readiness" and "Debug Pods".
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold, grouped


@check("NCD107", severity=Severity.ERROR, explains=FOLLOWS, scope="kube")
def pod_not_ready(view: View) -> Findings:
    yield from of_engine(view, "pod-not-ready")
    pods = view.kube.pods
    reached = [host.name for host in view.snapshot.reached if host.name in pods]
    for why, names in grouped((pods[name].unready, name) for name in reached if pods[name].unready).items():
        yield Finding(
            hosts=tuple(names),
            message=f"Kubernetes reports {fold(names)} as not ready, although the job's container is running: {why}.",
            facts={"reason": "unready"},
            fix="See which probe fails (kubectl describe pod). Until the pod is ready, a headless Service gives it no "
            "DNS name, unless the Service sets publishNotReadyAddresses: true.",
            severity=Severity.WARNING,
        )
