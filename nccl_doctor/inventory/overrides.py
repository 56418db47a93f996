"""What options say in place of a hosts file, for all hosts."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.inventory import values
from nccl_doctor.inventory.build import DEVICES, refuse_more_ranks_than_gpus
from nccl_doctor.inventory.parsed import SourceLocation
from nccl_doctor.model.cluster import Cluster, access
from nccl_doctor.transport.containers import InsideOptions
from nccl_doctor.transport.ssh import SshOptions


@dataclass(frozen=True)
class Overrides:
    """The options that win over the hosts file; None and empty where nothing was said."""

    python: str | None = None
    master_port: int | None = None
    master_addr: str | None = None
    nproc_per_node: int | None = None
    user: str | None = None
    port: int | None = None
    env: tuple[str, ...] = ()
    inside: str | None = None

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster with them, each named as the origin of its value.

        Raises:
            UsageError: a value can't be what the option is about.
        """
        python = None if self.python is None else values.python(self.python, _place("--python"))
        nproc = self.nproc_per_node and values.nproc(str(self.nproc_per_node), _place("--nproc-per-node"))
        login = {
            "user": None if self.user is None else values.user(self.user, _place("--user")),
            "port": self.port and values.port(str(self.port), _place("--port")),
        }
        login = {name: value for name, value in login.items() if value}
        inside = () if self.inside is None else (self._container(self.inside),)
        env = dict(self._variable(one) for one in self.env)
        devices = env.pop(DEVICES, None)
        if devices is not None:  # as in a hosts file, it stands in one place from here on
            devices = values.devices(devices, _place("--env"))
        origins = dict(cluster.origins)
        whole: dict[str, object] = {}
        if self.master_port:
            whole["master_port"] = values.port(str(self.master_port), _place("--master-port"))
        if self.master_addr is not None:
            whole["master_addr"] = values.host(self.master_addr, _place("--master-addr"))
        origins |= {name: f"--{name.replace('_', '-')}" for name in whole}
        nodes = []
        for node in cluster.nodes:
            update: dict[str, object] = {"python": python, "nproc_per_node": nproc}
            update = {name: value for name, value in update.items() if value}
            origins |= {f"{node.name}.{name}": f"--{name.replace('_', '-')}" for name in update}
            origins |= {f"{node.name}.ssh.{name}": f"--{name}" for name in login}
            origins |= {f"{node.name}.env.{name}": "--env" for name in env}
            if devices is not None:
                update["cuda_visible_devices"] = devices
                origins[f"{node.name}.cuda_visible_devices"] = "--env"
            said = access(node.options(SshOptions).model_copy(update=login), *inside)
            origins |= {f"{node.name}.inside.{name}": "--inside" for one in inside for name in one.model_fields_set}
            update |= {"access": {**node.access, **said}, "env": {**node.env, **env}}
            nodes.append(node.model_copy(update=update))
            if nproc or devices:
                count, seen = nodes[-1].nproc_per_node, nodes[-1].cuda_visible_devices
                refuse_more_ranks_than_gpus(node.name, count, seen, _place("--nproc-per-node" if nproc else "--env"))
        return cluster.model_copy(update={**whole, "nodes": tuple(nodes), "origins": origins})

    @staticmethod
    def _container(text: str) -> InsideOptions:
        runtime, colon, name = text.partition(":")
        if not colon:
            raise _place("--inside").error(f"{text!r} is no RUNTIME:NAME, as in docker:train")
        return values.inside(runtime, name, _place("--inside"))

    @staticmethod
    def _variable(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals:
            raise _place("--env").error(f"{text!r} is no NAME=VALUE")
        return values.variable(name, _place("--env")), values.variable_value(value, _place("--env"))


def _place(option: str) -> SourceLocation:
    return SourceLocation(option, is_file=False)
