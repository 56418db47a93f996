"""A NetworkPolicy in the namespace drops connections between the job's pods.

What it means: if any policy selects a pod, the pod's traffic is silently dropped unless a policy allows this traffic.
Policies are usually written for services and list the ports of these services. NCCL and gloo, however, listen on ports
that the kernel chooses, and every pod connects to every other pod. If a policy blocks these connections, the job hangs
in its rendezvous or at its first collective.

How we know: a connection between two pods failed, and the namespace's policies from the API server do not allow this
connection. The policies are evaluated for the labels and addresses of both pods and for the port. If the network
plugin does not enforce policies, these connections succeed and no policy is reported. If such a connection then fails
for another reason, the policies are reported wrongly.

Fix: add a policy that allows TCP connections on all ports, but only between the job's pods. Policies are additive, so
the existing policies need no change.

References: Kubernetes, "Network Policies". The API reference, NetworkPolicy v1 networking.k8s.io.
"""

from collections.abc import Iterable

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.ports.port_unreachable import MEANS
from nccl_doctor.checks.view import Findings, View, apply, check, common_labels, pairs_of, pasted, ports_of
from nccl_doctor.firewall.blame import PolicyBlame, open_policy
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.hostlist import fold, grouped, listed, quoted


@check("NCD308", severity=Severity.ERROR, needs=("mesh",), explains=(CONNECTIONS,))
def network_policy_blocks(view: View) -> Findings:
    kube = view.kube
    dropped = [(dial, blame) for dial in view.mesh.failed for blame in view.dials.policies.get(dial, ())]
    for policies, group in grouped((blame.names, (dial, blame)) for dial, blame in dropped).items():
        hosts = tuple(dict.fromkeys(blame.pod for _, blame in group))
        by_way = {blame.way: blame for _, blame in group}
        what = "to and from" if len(by_way) > 1 else "to" if "ingress" in by_way else "from"
        words, drop = ("NetworkPolicy", "blocks") if len(policies) == 1 else ("NetworkPolicies", "block")
        lines = grouped(((dial.dst, MEANS[dial.outcome]), dial) for dial, _ in group)
        yield Finding(
            hosts=hosts,
            message=f"The {words} {listed(map(quoted, policies))} in the namespace {quoted(kube.namespace)} {drop} the "
            f"job's connections {what} {fold(hosts)}.",
            evidence=tuple(
                f"seen    {fold(sorted({dial.src for dial in dials}))} -> {target}:{ports_of(dials)}: {means}"
                for (target, means), dials in lines.items()
            ),
            facts={"policies": list(policies), "namespace": kube.namespace, "ways": sorted(by_way)},
            details=Details(failed=pairs_of(dial for dial, _ in group)),
            fix=_fix(kube, by_way.values()),
        )


def _fix(kube: KubeFacts, closed: Iterable[PolicyBlame]) -> Fix:
    job = common_labels(kube)
    summary = "Let the job's pods reach each other on all TCP ports"
    if not job:
        return Fix(summary=f"{summary}. They have no label in common by which a policy could select them.")
    made = [open_policy(blame, job, f"{blame.names[0][:200]}-nccl-{blame.way}", kube.namespace) for blame in closed]
    return pasted(
        f"{summary} (this needs permission to create NetworkPolicies in the namespace):", on(None, *map(apply, made))
    )
