"""Why a name of a pod does not resolve: the headless Service that would give it is missing or gives it not yet."""

from __future__ import annotations

import json

from nccl_doctor.checks.wording import common_labels
from nccl_doctor.model.finding import Fix, on
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.pods import KubeFacts, Service
from nccl_doctor.text.shell import line

_EARLY = '{"spec":{"publishNotReadyAddresses":true}}'


def why(kube: KubeFacts, name: str) -> tuple[str, Fix] | None:
    """A sentence and what to do; None where the hosts are no pods."""
    if not kube.pods:
        return None
    pod_name, _, service_name = name.partition(".")
    service_name = service_name.partition(".")[0] or pod_name
    if isinstance(kube.services, Unknown):
        return (
            f"whether a Service {service_name} is there is not known: {kube.services.reason}",
            Fix(
                summary=f"See with kubectl get service {service_name} whether there is a headless Service of that name."
            ),
        )
    service = next((one for one in kube.services if one.name == service_name), None)
    if service is None:
        return f"there is no Service {service_name} in the namespace {kube.namespace}", _make(kube, service_name)
    if "." not in name:
        return None
    return _of(kube, service, pod_name)


def _of(kube: KubeFacts, service: Service, pod_name: str) -> tuple[str, Fix] | None:
    pod = next((one for one in kube.pods.values() if pod_name in (one.hostname, one.pod)), None)
    if not service.headless:
        summary = "Give the Service clusterIP: None (it has to be made anew): only a headless one gives pods names."
        return f"the Service {service.name} is not headless", Fix(summary=summary)
    if pod is not None and service.selector and not service.selector.items() <= pod.labels.items():
        chosen = ", ".join(f"{key}={value}" for key, value in service.selector.items())
        summary = "Give the Service's selector labels that the job's pods have."
        return f"the Service {service.name} chooses pods by {chosen}, which {pod.pod} has not", Fix(summary=summary)
    if pod is not None and pod.unready and not service.early:
        patch = "kubectl patch service {name} -n {namespace} -p {patch}"
        commands = on(None, line(patch, name=service.name, namespace=kube.namespace, patch=_EARLY))
        summary = "Have the Service give names before pods are ready; the ranks need them to become so:"
        sentence = f"{pod.pod} is not ready, and the Service {service.name} gives names to ready pods only"
        return sentence, Fix(summary=summary, risk="safe" if commands else "manual", commands=commands)
    return None


def _make(kube: KubeFacts, name: str) -> Fix:
    """A headless Service over the job's pods."""
    labels = common_labels(kube)
    summary = "Make a headless Service of that name over the job's pods"
    if not labels:
        return Fix(summary=f"{summary} (clusterIP: None, publishNotReadyAddresses: true).")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": kube.namespace},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
    }
    text = json.dumps(service, separators=(",", ":"))
    commands = on(None, line("printf %s {service} | kubectl apply -f -", service=text))
    return Fix(summary=f"{summary}:", risk="safe" if commands else "manual", commands=commands)
