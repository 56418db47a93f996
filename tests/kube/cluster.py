"""A cluster for kubectl whose pods are a lab's hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, final

from tests.cli.doctor import Run
from tests.cli.program import run_in
from tests.kube.pods import pod
from tests.lab.cluster import Lab
from tests.lab.host import NETWORK, LabHost, inside

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: ann, namespace: default}}}}]
users: [{{name: ann, user: {{token: none}}}}]
"""
ROOT = Path(__file__).parents[2]


def enter(host: LabHost) -> list[str]:
    """The argv before a command that runs it on a lab's host, as a container's runtime would."""
    namespaces = ["nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "--wdns=/"]
    return [*namespaces, "env", "-i", *(f"{name}={value}" for name, value in host.environment("root").items())]


@final
class KubeCluster:
    """An API server in the network of a lab's controller; ``state`` is what it serves, and :meth:`write` says so."""

    def __init__(self, lab: Lab, state: dict[str, Any]) -> None:
        self.lab, self.state = lab, state
        self._folder = tempfile.TemporaryDirectory(prefix="kube-")
        self._path = Path(self._folder.name) / "state.json"

    @classmethod
    def of_hosts(cls, lab: Lab, job: str = "train") -> KubeCluster:
        """An Indexed Job of one pod a host."""
        pods = [
            pod(f"{job}-{index}-x{index}", ip=host.address, index=index, job=job)
            for index, host in enumerate(lab.hosts)
        ]
        names = [one["metadata"]["name"] for one in pods]
        jobs = [{"metadata": {"name": job, "namespace": "default"}, "spec": {}}]
        namespaces = [{"metadata": {"name": "default", "labels": {"kubernetes.io/metadata.name": "default"}}}]
        state: dict[str, Any] = {"objects": {"pods": pods, "jobs": jobs, "namespaces": namespaces}}
        state["enter"] = {name: enter(host) for name, host in zip(names, lab.hosts, strict=True)}
        return cls(lab, state)

    def write(self) -> None:
        self._path.write_text(json.dumps(self.state))

    def paste(self, command: str) -> None:
        """Runs a printed command on the controller; what it made is in ``state`` then."""
        self.write()
        self.lab.controller.run(command)
        self.state = json.loads(self._path.read_text())

    def __enter__(self) -> KubeCluster:
        self.write()
        listening = inside(
            self.lab.controller.pid, NETWORK, lambda: socket.create_server(("127.0.0.1", 0), backlog=256)
        )
        with listening:
            port = listening.getsockname()[1]
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.kube.api_server", str(self._path)],
                stdin=listening.fileno(),
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self._server.stdout is not None
        with self._server.stdout as said:
            assert said.readline() == b"ready\n", "the API server did not start: its words are on stderr"
        self.lab.controller.write("/root/.kube/config", KUBECONFIG.format(port=port), 0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def doctor(self, *arguments: str) -> Run:
        """``nccl-doctor ARGUMENTS -o json`` on the controller."""
        self.write()
        done = run_in(self.lab.controller, *arguments, "-o", "json")
        assert "Traceback" not in done.stderr, done.stderr
        return Run(done.returncode, json.loads(done.stdout), done.stderr)
