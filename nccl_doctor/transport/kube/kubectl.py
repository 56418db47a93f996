"""Runs kubectl with a deadline and explains failures.

Without a deadline, kubectl could wait silently for minutes because of a broken link in the cluster.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Literal

from nccl_doctor.model.engines.kube import KubeOptions, NotReady
from nccl_doctor.snapshot.access import EngineFacts, EngineFailure
from nccl_doctor.transport.process import ProcessChannel, english

MAX_OUTPUT = 256 << 20  # bytes of a pod list that are read: 10,000 pods take about 100 MB
Trouble = Literal[
    "forbidden", "unauthorized", "gone", "no-such-kind", "not-running", "ended", "no-shell", "kubelet", "no-server",
    "not-configured", "failed",
]  # fmt: skip

_WORDS: tuple[tuple[Trouble, str], ...] = (
    ("forbidden", r"\(Forbidden\)|is forbidden|cannot (create|get|list) resource"),
    ("unauthorized", r"Unauthorized|must be logged in|getting credentials|provide credentials"),
    ("no-such-kind", r"doesn't have a resource type|no matches for kind"),
    ("gone", r"\(NotFound\)|pods \"[^\"]*\" not found"),
    ("ended", r"completed pod"),
    ("not-running", r"container not found|is not valid for pod|waiting to start|have a host assigned|is not running"),
    ("no-shell", r"/bin/sh.*(no such file|not found|permission denied)"),
    ("kubelet", r"error dialing backend|:10250|:10255|error sending request|proxy error"),
    (
        "not-configured",
        r"context .* does not exist|no configuration|localhost:8080|invalid configuration|error loading",
    ),
    ("no-server", r"Unable to connect|connection to the server|dial tcp|no such host|TLS handshake|x509|i/o timeout"),
)
"""Patterns for messages from client-go, the API server, the kubelet and runc. The first matching pattern is used."""


class KubectlError(Exception):
    """Error raised if kubectl fails, with the last line of its messages in ``last``."""

    def __init__(self, trouble: Trouble, last: str) -> None:
        self.trouble, self.last = trouble, last
        super().__init__(last)


def kubectl(*arguments: str, seconds: float, text: str = "") -> bytes:
    """Run ``kubectl ARGUMENTS`` and return its output.

    Raise FileNotFoundError if kubectl is not installed, TimeoutError after ``seconds``, or KubectlError if kubectl
    fails.
    """
    deadline, channel = time.monotonic() + seconds, ProcessChannel(["kubectl", *arguments], english())
    try:
        if text:
            channel.send(text.encode(), deadline)
        channel.end_input()
        lines: list[bytes] = []
        size = 0
        while (line := channel.read_line(deadline)) is not None:
            size += len(line) + 1
            if size > MAX_OUTPUT:
                raise KubectlError("failed", f"more than {MAX_OUTPUT >> 20} MiB of output")
            lines.append(line)
        status, stderr = channel.exit_status(deadline), channel.stderr_tail()
    finally:
        channel.close()
    if status != 0:
        raise KubectlError(trouble(stderr), last_line(stderr) or f"status {status}")
    return b"\n".join(lines)


def trouble(stderr: str) -> Trouble:
    return next((name for name, words in _WORDS if re.search(words, stderr, re.IGNORECASE)), "failed")


def last_line(stderr: str) -> str:
    """Return kubectl's last message as one line of limited length."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


_LATER = "See what has become of the pod (kubectl describe pod), and check again when it runs."
_DETAIL: dict[Trouble, tuple[str, str]] = {
    "forbidden": (
        "can't be accessed: kubectl exec is forbidden (see kubectl auth can-i create pods/exec -n {namespace})",
        "Ask the cluster's administrator for the right to create pods/exec in the namespace {namespace}.",
    ),
    "unauthorized": (
        "can't be accessed: the cluster's API server does not know this user (Unauthorized)",
        "Log in to the cluster again, so that kubectl get pods works, and check again.",
    ),
    "no-shell": (
        "has no /bin/sh in its container {container}, and the probe starts from one",
        "Have the annotation kubectl.kubernetes.io/default-container of the pod name a container with a shell.",
    ),
    "kubelet": (
        "can't be accessed: the API server gets no answer from the kubelet on the node",
        "See with kubectl get nodes whether its node is Ready, and have it repaired or the pod moved.",
    ),
    "failed": ("can't be accessed: kubectl exec ended", "See what kubectl exec into that pod says."),
    "no-server": (
        "can't be accessed: the cluster's API server does not answer this machine",
        "See that kubectl get pods works here: a VPN, a proxy, or the cluster's address in the kubeconfig.",
    ),
    "gone": ("is gone: the cluster has no pod of that name any more", _LATER),
    "ended": ("has finished: commands can't run in a finished pod", _LATER),
    "not-running": ("runs no container {container} now", _LATER),
}
_AWAY = ("gone", "ended", "not-running")


def not_ready(options: KubeOptions, why: NotReady) -> EngineFailure:
    """Return the failure for a pod that is listed as not ready."""
    facts = _facts(options, "not-ready")
    return EngineFailure(kind="pod-not-ready", detail=why.detail, evidence=why.evidence, remedy=why.remedy, facts=facts)


@dataclass(frozen=True)
class FailedEntry:
    """A failed attempt to enter a pod."""

    absent: bool = False  # kubectl is not installed
    seconds: float | None = None  # time without an answer; None if kubectl exited
    stderr: str = ""  # kubectl's last lines


def failure(options: KubeOptions, entry: FailedEntry) -> EngineFailure:
    """Return the failure for an attempt in which kubectl was missing, did not answer in time, or failed."""
    late, last = entry.seconds is not None, ""
    if entry.absent:
        why, detail, remedy = "kubectl", "was not entered: kubectl is not installed here", "Install kubectl."
    elif late:
        why, detail = "silent", f"did not answer kubectl exec within {entry.seconds:.0f} s"
        remedy = (
            "The API server took the request and the kubelet of the pod's node stays silent, or the link to either "
            "does: see with kubectl get nodes whether it is Ready."
        )
    else:
        why, last = trouble(entry.stderr), last_line(entry.stderr)
        detail, remedy = _DETAIL.get(why, _DETAIL["failed"])
    holes = {"namespace": options.namespace, "container": options.container}
    where = () if options.machine is None else (f"on the node {options.machine}",)
    return EngineFailure(
        kind="pod-not-ready" if why in _AWAY else "pod-unreachable",
        detail=detail.format(**holes),
        evidence=(*where, *((f"kubectl: {last}",) if last else ())),
        remedy=remedy.format(**holes),
        facts=_facts(options, why).model_copy(update={"late": late}),
    )


def _facts(options: KubeOptions, reason: str) -> EngineFacts:
    asked = {"pod": options.pod, "namespace": options.namespace, "container": options.container}
    return EngineFacts(**asked, node=options.machine, reason=reason)
