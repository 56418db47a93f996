"""Runs commands in pods with ``kubectl exec``; kubectl's configuration and rights are the user's own."""

from __future__ import annotations

import math
import secrets
import time
from pathlib import Path

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot import EngineFacts, EngineFailure
from nccl_doctor.transport.base import AccessError, Greeting
from nccl_doctor.transport.kube.kubectl import KubeOptions, NotReady, Trouble, environment, last_line, trouble
from nccl_doctor.transport.process import ProcessChannel

_LATER = "See what has become of the pod (kubectl describe pod), and check again when it runs."
_DETAIL: dict[Trouble, tuple[str, str]] = {
    "forbidden": (
        "may not be entered: `kubectl auth can-i create pods/exec -n {namespace}` says no",
        "Ask whoever runs the cluster for the right to create pods/exec in the namespace {namespace}.",
    ),
    "unauthorized": (
        "was not entered: the cluster's API server does not know this user (Unauthorized)",
        "Log in to the cluster again, so that kubectl get pods works, and check again.",
    ),
    "no-shell": (
        "has no /bin/sh in its container {container}, and the probe starts from one",
        "Have the annotation kubectl.kubernetes.io/default-container of the pod name a container with a shell.",
    ),
    "kubelet": (
        "was not entered: the API server gets no answer from the kubelet of its node",
        "See with kubectl get nodes whether its node is Ready, and have it mended or the pod moved.",
    ),
    "no-server": (
        "was not entered: the cluster's API server does not answer here",
        "See that kubectl get pods works here: a VPN, a proxy, or the cluster's address in the kubeconfig.",
    ),
    "gone": ("is gone: the cluster has no pod of that name any more", _LATER),
    "ended": ("has ended: nobody can enter a pod that has run through", _LATER),
    "not-running": ("runs no container {container} now", _LATER),
}
_AWAY = ("gone", "ended", "not-running")


class KubeTransport:
    """Starts one kubectl a pod."""

    def open(
        self,
        node: Node,
        command: str,
        deadline: float,
        latest: float = math.inf,  # noqa: ARG002 - there is no login that takes longer than the first answer
    ) -> ProcessChannel:
        """Starts ``command`` in the pod's container.

        Raises:
            AccessError: the pod is not there, or can't be entered.
        """
        options, started = node.options(KubeOptions), time.monotonic()
        if options.not_ready is not None:
            raise AccessError(_not_ready(options, options.not_ready))
        # The shell in the container prints the mark: without it, kubectl's end is a failure to get in.
        mark = f"ncdoctor-{secrets.token_hex(8)}"
        try:
            channel = ProcessChannel(_argv(options, f"echo {mark}; {command}"), environment())
        except FileNotFoundError:
            raise AccessError(_failure(options, "kubectl", "was not entered: there is no kubectl here")) from None
        try:
            if Greeting(channel.read_line, mark).ends(deadline):
                return channel
            channel.exit_status(deadline)
            failure = _ended(options, channel.stderr_tail())
        except TimeoutError:
            failure = _silent(options, deadline - started)
        except BaseException:
            channel.close()
            raise
        channel.close()
        raise AccessError(failure)

    def connect_timeout(self, node: Node) -> float | None:  # noqa: ARG002 - as every transport
        """There is none in kubectl's configuration."""
        return None

    def close(self) -> None:
        """Nothing is shared."""


def _argv(options: KubeOptions, command: str) -> list[str]:
    where = ["-n", options.namespace, "exec", "-i", options.pod, "-c", options.container]
    return ["kubectl", *where, "--", "/bin/sh", "-c", command]


def _not_ready(options: KubeOptions, why: NotReady) -> EngineFailure:
    facts = _facts(options, "not-ready")
    return EngineFailure(kind="pod-not-ready", detail=why.detail, evidence=why.evidence, remedy=why.remedy, facts=facts)


def _ended(options: KubeOptions, stderr: str) -> EngineFailure:
    why, said = trouble(stderr), last_line(stderr)
    plain = "was not entered: kubectl exec ended", "See what kubectl exec into that pod says."
    detail, remedy = _DETAIL.get(why, plain)
    holes = {"namespace": options.namespace, "container": options.container}
    return EngineFailure(
        kind="pod-not-ready" if why in _AWAY else "pod-unreachable",
        detail=detail.format(**holes),
        evidence=(*_where(options), *((f"kubectl: {said}",) if said else ())),
        remedy=remedy.format(**holes),
        facts=_facts(options, why),
    )


def _silent(options: KubeOptions, seconds: float) -> EngineFailure:
    detail = f"gave no answer to kubectl exec in {seconds:.0f} s"
    remedy = (
        "The API server took the request and the kubelet of the pod's node stays silent, or the link to either does: "
        "see with kubectl get nodes whether it is Ready."
    )
    return _failure(options, "silent", detail, remedy, late=True)


def _failure(
    options: KubeOptions, reason: str, detail: str, remedy: str = "Install kubectl.", *, late: bool = False
) -> EngineFailure:
    facts = _facts(options, reason).model_copy(update={"late": late})
    return EngineFailure(kind="pod-unreachable", detail=detail, evidence=_where(options), remedy=remedy, facts=facts)


def _where(options: KubeOptions) -> tuple[str, ...]:
    return () if options.machine is None else (f"on the node {options.machine}",)


def _facts(options: KubeOptions, reason: str) -> EngineFacts:
    return EngineFacts(
        pod=options.pod,
        namespace=options.namespace,
        container=options.container,
        node=options.machine,
        reason=reason,
    )


def make(_kind: str, _config: Path | None, _cluster: Cluster) -> KubeTransport:
    """The transport into pods; for the register, which passes what it needs not."""
    return KubeTransport()
