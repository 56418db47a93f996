"""Runs kubectl: with a deadline of ours, for a link of the cluster may stay silent for minutes, and never asking.

What ``kubectl exec`` is told of a node.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import ClassVar, Literal

from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.transport.process import ProcessChannel

MAX_OUTPUT = 256 << 20
"""Bytes of a pod list that are read: 10,000 pods take some 100 MB."""

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
"""What client-go, the API server, the kubelet and runc say, in the order in which they are looked for."""


class KubectlError(Exception):
    """kubectl failed; ``said`` is its last line."""

    def __init__(self, trouble: Trouble, said: str) -> None:
        self.trouble, self.said = trouble, said
        super().__init__(said)


@dataclass(frozen=True)
class _Ended:
    output: bytes
    status: int | None
    stderr: str


def kubectl(*arguments: str, seconds: float, text: str = "") -> bytes:
    """What ``kubectl ARGUMENTS`` prints.

    Args:
        arguments: of kubectl.
        seconds: how long it may take.
        text: for its stdin.

    Raises:
        FileNotFoundError: there is no kubectl here.
        TimeoutError: it did not end in time.
        KubectlError: it failed.
    """
    ended = _run(["kubectl", *arguments], time.monotonic() + seconds, text)
    if ended.status != 0:
        raise KubectlError(trouble(ended.stderr), last_line(ended.stderr) or f"status {ended.status}")
    return ended.output


def trouble(stderr: str) -> Trouble:
    """What kubectl's words mean."""
    return next((name for name, words in _WORDS if re.search(words, stderr, re.IGNORECASE)), "failed")


def last_line(stderr: str) -> str:
    """The last thing that it said, in one line of bounded length."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


def environment() -> dict[str, str]:
    """Ours, in English."""
    return os.environ | {"LC_ALL": "C", "LANGUAGE": "C"}


def _run(argv: list[str], deadline: float, text: str) -> _Ended:
    channel = ProcessChannel(argv, environment())
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
        return _Ended(b"\n".join(lines), channel.exit_status(deadline), channel.stderr_tail())
    finally:
        channel.close()


class NotReady(FrozenModel):
    """Why a pod can't be entered, as the pod list says.

    Attributes:
        detail: goes on behind the pod's name.
        evidence: the cluster's own words.
        remedy: prose.
    """

    detail: str
    evidence: tuple[str, ...] = ()
    remedy: str


class KubeOptions(NodeOptions):
    """A pod and the container in which the job runs; the names are as the API server takes them (RFC 1123)."""

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    pod: str = ""
    container: str = ""
    machine: str | None = None
    not_ready: NotReady | None = None
