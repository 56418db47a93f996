"""The label by which the pods of a job are known, for objects that choose them."""

from __future__ import annotations

from nccl_doctor.snapshot.pods import KubeFacts

_IDENTITY = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "app.kubernetes.io/instance",
    "app",
)


def common_labels(kube: KubeFacts) -> dict[str, str]:
    """The first of those that controllers set, or people, and that all pods of the job share; empty without one."""
    for key in _IDENTITY:
        values = {pod.labels.get(key) for pod in kube.pods.values()}
        value = values.pop() if len(values) == 1 else None
        if value:
            return {key: value}
    return {}
