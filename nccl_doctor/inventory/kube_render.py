"""A Job that runs the check inside of the cluster, by pods like those of the job, where nobody may enter pods."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from nccl_doctor import framed, probe
from nccl_doctor.inventory.kube_api import Container, Pod

PORT = 29400
SHM = "/dev/shm"  # noqa: S108 - a mount's place
SERVICE_NAME = 50
"""Letters of the Job's name: its pods' host names, with "-" and an index behind, have 63 at most."""

HEAD = """\
# The check of {what}, run inside of the cluster by pods like its own. As a user who may create Jobs:
#
#   kubectl apply -f check.yaml
#   kubectl logs -n {namespace} --tail=-1 -f -l job-name={name},batch.kubernetes.io/job-completion-index=0 > check.log
#   nccl-doctor check --from-logs check.log
#   kubectl delete -f check.yaml
#
# It asks for the same devices as the job: end that first where they are all taken. Its image has to have Python; where
# it lacks nccl-doctor, pod 0 installs that with pip. The token below lets nobody but these pods take part.
"""

SCRIPT = """\
set -u
name={name}
python3 -c "$NCDOCTOR_AGENT" "$name-0.$name" {port} "$name-$JOB_COMPLETION_INDEX.$name" &
agent=$!
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  if ! command -v nccl-doctor >/dev/null; then
    python3 -m pip install --quiet --target /tmp/nccl-doctor nccl-doctor=={version} || exit 1
    export PYTHONPATH=/tmp/nccl-doctor PATH=/tmp/nccl-doctor/bin:$PATH
  fi
  nccl-doctor check -w "$name-[0-{last}].$name" --transport dial-back --connect-timeout 300 --timeout 900 {python} \\
    --save /tmp/nccl-doctor.json
  python3 -c "$NCDOCTOR_WRITER" /tmp/nccl-doctor.json
fi
wait $agent
exit 0
"""


def manifest(pods: Sequence[Pod], container: Container, what: str, image: str | None, python: str | None) -> str:
    """The Job and its headless Service, as YAML.

    Args:
        pods: those of the job, in order.
        container: the one in which the job runs, of the first.
        what: the job, for the comment.
        image: in place of the container's.
        python: the interpreter that training uses; None for python3.
    """
    namespace = pods[0].metadata.namespace
    owner = pods[0].owner.name if pods[0].owner else pods[0].metadata.name
    name = re.sub(r"[^a-z0-9-]", "-", owner)[: SERVICE_NAME - 6].strip("-") + "-check"
    labels = {"app.kubernetes.io/name": "nccl-doctor", "app.kubernetes.io/instance": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(labels)},
    }
    said = f"--python {python}" if python else ""
    script = SCRIPT.format(name=name, port=PORT, last=len(pods) - 1, version=version("nccl-doctor"), python=said)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(pods),
            "parallelism": len(pods),
            "backoffLimit": 0,
            "activeDeadlineSeconds": 1800,
            "ttlSecondsAfterFinished": 86400,
            "template": {
                "metadata": {"labels": dict(labels), **_annotations(pods[0])},
                "spec": {
                    **_like(pods[0], container),
                    "subdomain": name,
                    "restartPolicy": "Never",
                    "affinity": {"podAntiAffinity": _apart(labels)},
                    "containers": [_container(container, image, script)],
                },
            },
        },
    }
    text = StringIO()
    yaml = YAML()
    yaml.width = 200
    yaml.dump_all([service, job], text)
    return HEAD.format(what=what, namespace=namespace, name=name) + text.getvalue()


def _container(container: Container, image: str | None, script: str) -> dict[str, Any]:
    agent = (Path(probe.__file__).parent / "dial_back.py").read_text(encoding="utf-8")
    variables: dict[str, str] = {
        "NCDOCTOR_TOKEN": secrets.token_hex(16),
        "NCDOCTOR_PORT": str(PORT),
        "NCDOCTOR_AGENT": LiteralScalarString(agent),
        "NCDOCTOR_WRITER": LiteralScalarString(framed.WRITER),
    }
    kept = (
        {"securityContext": {"capabilities": {"add": list(added)}}}
        if (added := container.security.capabilities.add)
        else {}
    )
    shm = [one for one in container.mounts if one.path.rstrip("/") == SHM]
    return {
        "name": "check",
        "image": image or container.image,
        "command": ["/bin/sh", "-c", LiteralScalarString(script)],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {
            key: dict(value)
            for key, value in (("limits", container.resources.limits), ("requests", container.resources.requests))
            if value
        },
        **kept,
        **({"volumeMounts": [{"name": "shm", "mountPath": SHM}]} if shm else {}),
    }


def _like(pod: Pod, container: Container) -> dict[str, Any]:
    """What decides on which nodes and on which network the pods are, as the job's have it."""
    spec = pod.spec
    mounts = {one.name for one in container.mounts if one.path.rstrip("/") == SHM}
    volume = next((one for one in spec.volumes if one.name in mounts and one.empty_dir is not None), None)
    size = volume.empty_dir.limit if volume is not None and volume.empty_dir is not None else None
    shm = {"medium": "Memory", **({"sizeLimit": size} if size is not None else {})}
    said: Mapping[str, Any] = {
        "hostNetwork": spec.host_network or None,
        "dnsPolicy": "ClusterFirstWithHostNet" if spec.host_network else None,
        "nodeSelector": spec.node_selector or None,
        "tolerations": list(spec.tolerations) or None,
        "runtimeClassName": spec.runtime_class or None,
        "imagePullSecrets": list(spec.pull_secrets) or None,
        "volumes": [{"name": "shm", "emptyDir": shm}] if mounts else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _annotations(pod: Pod) -> dict[str, Any]:
    wanted = "k8s.v1.cni.cncf.io/networks"
    told = pod.metadata.annotations.get(wanted)
    return {"annotations": {wanted: told}} if told else {}


def _apart(labels: Mapping[str, str]) -> dict[str, Any]:
    """One pod a node where there are enough, as a job's are."""
    term = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
