"""What stands between pods that can't reach each other, where neither a rule in them nor a NetworkPolicy tells."""

from __future__ import annotations

from collections.abc import Collection

from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.pods import KubeFacts
from nccl_doctor.text.hostlist import fold


def between(kube: KubeFacts, ends: Collection[str]) -> str | None:
    """What to look at, in order; None where the hosts are no pods.

    A pod's packets go through its node's forward chain, which nobody sees from inside of the pod.
    """
    pods = [kube.pods[name] for name in ends if name in kube.pods]
    if not pods:
        return None
    nodes = sorted({pod.machine for pod in pods if pod.machine})
    what = "the nodes' own firewall and the cluster's network plugin"
    where = f"the node{'s' * (len(nodes) > 1)} {fold(nodes)}" if nodes else "their nodes"
    look = (
        f"What is left is {what}: have whoever runs {where} look there, as root, at the rules that forwarded packets "
        "meet (nft list ruleset, iptables-save: FORWARD), and let all TCP through among the pods' addresses; between "
        "nodes of a cloud the security group, too."
    )
    if isinstance(kube.policies, Unknown):
        return f"The NetworkPolicies could not be looked at: {kube.policies.reason}; see those first. {look}"
    return f"No NetworkPolicy drops it. {look}"
