"""Pods as an API server lists them."""

from __future__ import annotations

from typing import Any


def pod(
    name: str, *, ip: str | None = None, index: int | None = None, job: str = "train", **spec: Any
) -> dict[str, Any]:
    """A pod that runs; of an Indexed Job where it has an index."""
    labels = {"batch.kubernetes.io/job-name": job, "job-name": job}
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "1", "controller": True}
    container = {"name": "main", "image": "train:1", "resources": {}}
    running = {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": f"gpu-{index}", "containers": [container], **spec},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}] if ip else [],
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [running],
        },
    }
