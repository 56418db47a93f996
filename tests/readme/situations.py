"""Where README's blocks are run: in a lab, as healthy or as broken as the page says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from nccl_doctor.model.ports import GRACE_S
from tests.cli.injected import inject
from tests.kube.cluster import KubeCluster
from tests.lab import containers
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.faults.network import switch_rule
from tests.lab.faults.ports import leave_listener
from tests.lab.plan import CONTROLLER
from tests.lab.slurm import Slurm
from tests.lab.warm import interpreter, tool

WITHOUT_CAPABILITY = ("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "--")
"""As root in a pod has it where nobody asks for more: it may not read firewall rules."""
PROJECT = Path(__file__).parents[2]
PYTHON = "/opt/train/bin/python"
"""The interpreter of which the page speaks: this one by another name, or a fork that has imported torch already."""

Done = subprocess.CompletedProcess[str]


class Place(Protocol):
    """Where commands are typed."""

    def type(self, text: str, host: str) -> Done:
        """A shell reads the text there, or on a host that the prompt names."""
        ...

    def write(self, name: str, text: str) -> None:
        """One of the page's files, where commands find it."""
        ...


@dataclass
class InLab:
    """A shell on the controller of a lab, or on another host.

    Attributes:
        lab: which one.
        host: where a prompt names none.
        folder: the working one.
        env: variables besides.
        own: files that are there already, so that the page's are not written over them.
    """

    lab: Lab
    host: str = CONTROLLER
    folder: str = "/root"
    env: dict[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()

    def type(self, text: str, host: str) -> Done:
        there = self.lab.host(host or self.host)
        env = {"PATH": f"{Path(PYTHON).parent}:{there.environment('root')['PATH']}", **self.env}
        return there.run(["bash", "-c", f"cd {self.folder}\n{text}"], check=False, env=env)

    def write(self, name: str, text: str) -> None:
        if name not in self.own:
            self.lab.host(self.host).write(f"{self.folder}/{name}", text)


@dataclass
class Script(InLab):
    """A batch script of Slurm's, which is waited for; it starts on the job's first node."""

    def type(self, text: str, host: str) -> Done:
        self.write("script.sh", f"#!/bin/bash\n{text}")
        return super().type("sbatch --wait --quiet -N4 -o script.out script.sh", host)


@dataclass
class Here:
    """This machine, in the project's folder, with a /run of its own: what scripts/lab writes there, nobody else reads."""

    run: str

    def type(self, text: str, host: str) -> Done:
        assert not host, "this machine has no such host"
        line = f"mount --bind {self.run} /run && cd {PROJECT} && ({text})"
        with tempfile.TemporaryFile("w+") as out:  # a lab that stands keeps what it was given: no pipe
            done = subprocess.run(["unshare", "--mount", "bash", "-c", line], stdout=out, stderr=out, check=False)
            out.seek(0)
            return subprocess.CompletedProcess(text, done.returncode, out.read(), "")

    def write(self, name: str, text: str) -> None:
        """None is read here."""


@contextmanager
def _lab(hosts: int = 4, *, plain: bool = False) -> Iterator[Lab]:
    folder = Path(PYTHON).parent
    make = f"ln -s {sys.prefix} {folder.parent}" if plain else (
        f"mkdir -p {folder} && ln -s {interpreter()} {PYTHON} && ln -s {tool()} {folder}"
    )  # fmt: skip
    with Lab.up(hosts) as lab:
        for host in [*lab.hosts, lab.controller]:
            host.run(make)
        yield lab


@contextmanager
def healthy() -> Iterator[Place]:
    """Four hosts, as the hosts file names them."""
    with _lab() as lab:
        lab.controller.write("/root/train.log", (Path(__file__).parent / "train.log").read_text())
        yield InLab(lab)


@contextmanager
def stale() -> Iterator[Place]:
    """A rank of a job that is gone holds the master port, for longer than what might just be starting."""
    with _lab() as lab:
        (first, *_) = lab.hosts
        leave_listener(lab, first, PYTHON)
        began = time.monotonic()
        lab.controller.run("mkdir -p /var/lib/node_exporter")
        first.wait_until(lambda: time.monotonic() > began + GRACE_S + 1, "its age")
        yield InLab(lab)


@contextmanager
def _broken(name: str, host: str) -> Iterator[Place]:
    with _lab() as lab:
        fault(name)(lab, lab.host(host))
        yield InLab(lab)


@contextmanager
def containers_of_their_own() -> Iterator[Place]:
    """On each host a container with what podman gives it where nobody asks for more."""
    with _lab(plain=True) as lab:
        for host in lab.hosts:
            containers.prepare(host)
            containers.start(host, "train", "--volume=/opt:/opt:ro")
        yield InLab(lab)


@contextmanager
def slurm() -> Iterator[Place]:
    """A job on four nodes, of which one's slurmd ends before anybody looks."""
    with _lab() as lab:
        slurm = Slurm.up(lab)
        slurm.allocate("-N4")
        lab.hosts[2].run("pkill -KILL -x slurmd")
        yield InLab(lab)


@contextmanager
def slurm_script() -> Iterator[Place]:
    """Nodes for a batch script, on the first of which something holds the master port."""
    with _lab() as lab:
        Slurm.up(lab)
        leave_listener(lab, lab.hosts[0], PYTHON)
        yield Script(lab, "node1")


@contextmanager
def without_ssh() -> Iterator[Place]:
    """Nodes without sshd; two of them have run the command already, and the third never does."""
    with _lab() as lab:
        first, second, _, fourth = lab.hosts
        env = {"NNODES": "4", "MASTER_ADDR": first.address, "NCDOCTOR_TOKEN": "0123456789abcdef"}
        for rank, host in ((1, second), (3, fourth)):
            fault("sshd-dead")(lab, host)
            said = [f"{key}={value}" for key, value in {**env, "NODE_RANK": rank}.items()]
            host.background(["env", *said, str(tool()), "check", "--join", "--python", PYTHON])
        yield InLab(lab, env={**env, "NODE_RANK": "0"})


@contextmanager
def pods() -> Iterator[Place]:
    """A StatefulSet in a namespace that lets nothing in; the switch does what a network plugin would."""
    with _lab() as lab, KubeCluster.of_hosts(lab) as cluster:
        objects = cluster.state["objects"]
        for index, one in enumerate(objects["pods"]):
            name = one["metadata"]["name"]
            one["metadata"] |= {"name": f"train-{index}", "labels": {"app": "train"}}
            one["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "StatefulSet"}
            cluster.state["enter"][f"train-{index}"] = [*cluster.state["enter"].pop(name), *WITHOUT_CAPABILITY]
        selector = {"matchLabels": {"app": "train"}}
        objects["statefulsets"] = [
            {"metadata": {"name": "train", "namespace": "default"}, "spec": {"selector": selector}}
        ]
        deny = {"podSelector": {}, "policyTypes": ["Ingress"]}
        objects["networkpolicies"] = [{"metadata": {"name": "default-deny", "namespace": "default"}, "spec": deny}]
        cluster.write()
        switch_rule(lab, "ip protocol tcp drop")
        yield InLab(lab)


@contextmanager
def rank_that_hangs() -> Iterator[Place]:
    """Two hosts; on the second one, something on PYTHONPATH never lets the rank go on."""
    with _lab(2) as lab:
        env = inject(lab.hosts[1], "hang", "group")
        hosts = lab.hosts_file(python=PYTHON, hosts=["node1", {"name": "node2", "env": env}])
        lab.controller.write("/root/hosts.yaml", hosts)
        yield InLab(lab, own=("hosts.yaml",))


@contextmanager
def job_that_hangs() -> Iterator[Place]:
    """A rank on each of two hosts, of which one waits for its data loader."""
    with _lab(2) as lab:
        for rank, host in enumerate(lab.hosts):
            for name in ("train", "dataset"):
                host.write(f"/root/{name}.py", (Path(__file__).parent / f"{name}.txt").read_text())
            host.run("mkfifo /run/storage")
            env = {
                "RANK": rank,
                "LOCAL_RANK": 0,
                "WORLD_SIZE": 2,
                "MASTER_ADDR": lab.hosts[0].address,
                "MASTER_PORT": 29500,
            }
            said = [f"{key}={value}" for key, value in env.items()]
            host.background(["env", *said, PYTHON, "train.py"])
        first = lab.hosts[0]
        first.wait_until(lambda: first.run("test -e /run/step-0", check=False).returncode == 0, "the job's first step")
        yield InLab(lab)


@contextmanager
def fresh_machine() -> Iterator[Place]:
    """A machine with the project's files, named gpu01. What the project needs is here already: nothing is downloaded."""
    with _lab(1) as lab:
        (host,) = lab.hosts
        host.run("hostname gpu01 && mkdir src && sed -i 's/node1/gpu01/' /etc/hosts")
        sources = [str(PROJECT / name) for name in ("nccl_doctor", "pyproject.toml", "README.md", "LICENSE")]
        host.run(["cp", "-r", *sources, "/root/src"])
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        host.run(["mount", "-t", "tmpfs", "none", f"{packages}/nvidia"])  # tests need it, and torch for CPUs does not
        env = {"PYTHONPATH": packages, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
        env["PATH"] = f"{sys.base_prefix}/bin:{host.environment('root')['PATH']}"
        yield InLab(lab, host.name, "/root/src", env)


@contextmanager
def by_hand() -> Iterator[Place]:
    """The project's own folder; a lab that was left standing there is taken down."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        place = Here(folder)
        yield place
        if list(Path(folder).glob("*lab.json")):
            place.type("scripts/lab down", "")


SITUATIONS: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "a fresh machine": fresh_machine,
    "healthy": healthy,
    "stale-listener on node1": stale,
    "firewalld-public on node1": partial(_broken, "firewalld-public", "node1"),
    "cut-off on node3": partial(_broken, "cut-off", "node3"),
    "compose-bridge on node2": partial(_broken, "compose-bridge", "node2"),
    "containers of their own": containers_of_their_own,
    "a Slurm job": slurm,
    "a Slurm script": slurm_script,
    "pods": pods,
    "nodes without SSH": without_ssh,
    "a rank that hangs": rank_that_hangs,
    "a job that hangs": job_that_hangs,
    "the project's folder": by_hand,
}
