"""Defines a transport that runs commands in pods with ``kubectl exec POD -- COMMAND``."""

from __future__ import annotations

import math
import secrets
import time

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.kube import KubeOptions
from nccl_doctor.transport.base import AccessError, Greeting, Transport
from nccl_doctor.transport.kube.kubectl import FailedEntry, failure, not_ready
from nccl_doctor.transport.process import ProcessChannel, english


class KubeTransport(Transport):
    """A transport that starts one kubectl process per pod to run a command in the pod."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:  # noqa: ARG002 - no login takes longer than the first answer
        options = node.options(KubeOptions)
        if options.not_ready is not None:
            raise AccessError(not_ready(options, options.not_ready))
        # The shell inside prints the mark: without it, kubectl's end counts as a failure to enter.
        started, mark = time.monotonic(), f"ncdoctor-{secrets.token_hex(8)}"
        into = ["kubectl", "-n", options.namespace, "exec", "-i", options.pod, "-c", options.container, "--"]
        try:
            channel = ProcessChannel([*into, "/bin/sh", "-c", f"echo {mark}; {command}"], english())
        except FileNotFoundError:
            raise AccessError(failure(options, FailedEntry(absent=True))) from None
        greeting = Greeting(channel.read_line, mark)
        try:
            if greeting.ends(deadline):
                return channel
            channel.exit_status(deadline)
            attempt = FailedEntry(stderr=channel.stderr_tail())
        except TimeoutError:
            attempt = FailedEntry(seconds=deadline - started)
        except BaseException:
            channel.close()
            raise
        channel.close()
        raise AccessError(failure(options, attempt))
