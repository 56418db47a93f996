"""Builds the cluster from a parsed inventory, with common settings, defaults, ranks, and the origin of each value.

The module also applies options that override the hosts file, and determines which listed host is this machine.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.inventory.values import host
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT, Cluster, Node, access
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.text.hostlist import fold, plural, quoted
from nccl_doctor.text.inet import is_loopback

SettledHosts = dict[str, tuple[Entry, Settings]]  # each host by its name, in order, with all its settings

DEVICES = "CUDA_VISIBLE_DEVICES"
LAUNCH_LINE = "launch command"


def build(
    parsed: ParsedInventory, exclude: Collection[str], here: ThisMachine, only: Collection[str] | None = None
) -> Cluster:
    """Return a cluster of the hosts in ``only`` that are not in ``exclude``.

    Node ranks follow the inventory's order.
    """
    settings: SettledHosts = {}
    for entry in parsed.entries:
        if entry.name.value in settings:
            first = settings[entry.name.value][0].name.place.line
            twice = f"host {quoted(entry.name.value)} is listed twice{f' (first on line {first})' if first else ''}"
            raise entry.name.place.error(f"{twice}; keep one, or give one machine that is two nodes two names")
        host_settings = _settle_devices(entry.own.over(entry.shared), entry)
        if (ranks := host_settings.nproc_per_node) and ranks.value and (devices := host_settings.cuda_visible_devices):
            refuse_more_ranks_than_gpus(entry.name.value, ranks.value, devices.value, ranks.place)
        settings[entry.name.value] = entry, host_settings
    local = {entry.name.value: _why_local(entry, here) for entry in parsed.entries}
    _refuse_shared_gpus(settings, local)
    there = {*settings, *(entry.address.value for entry in parsed.entries)}
    for option, names in (("-w", only or ()), ("-x", exclude)):
        if absent := [name for name in names if name not in there]:
            near = difflib.get_close_matches(absent[0], there, 1)
            hint = f"; did you mean {quoted(near[0])}?" if near else ""
            raise UsageError(f"{option}: {fold(absent)} is not a host of {parsed.place.source}{hint}")
    chosen, out = set(there if only is None else only), set(exclude)
    known_by = [(pair, {name, pair[0].address.value}) for name, pair in settings.items()]
    left = [pair for pair, names in known_by if names & chosen and not names & out]
    if not left:
        raise UsageError(f"-x leaves out every host of {parsed.place.source}; at least one has to remain")
    origins: dict[str, str] = {}
    nodes = tuple(_node(rank, *pair, local[pair[0].name.value], origins) for rank, pair in enumerate(left))
    address, port = parsed.master_addr, parsed.master_port
    origins["master_addr"] = str(address.place) if address else "default: the first host's address"
    origins["master_port"] = str(port.place) if port else "default"
    if parsed.engine:
        origins["engine"] = str(parsed.engine.place)
    if parsed.same:
        origins["same"] = str(parsed.same[0].place)
    return Cluster(
        nodes=nodes,
        master_addr=address.value if address else nodes[0].address,
        master_port=port.value if port else DEFAULT_MASTER_PORT,
        same=tuple(dict.fromkeys(path.value for path in parsed.same)),
        engine=parsed.engine.value if parsed.engine else None,
        source=parsed.place.source,
        access=access(*parsed.access),
        origins=origins,
    )


def _settle_devices(settings: Settings, entry: Entry) -> Settings:
    if DEVICES not in settings.env:
        return settings
    env = dict(settings.env)
    variable = env.pop(DEVICES)
    if entry.own.cuda_visible_devices and DEVICES in entry.own.env:
        raise variable.place.error(f"{DEVICES} in env repeats cuda_visible_devices; keep one of them")
    if settings.cuda_visible_devices:
        return replace(settings, env=env)
    devices = Sourced(values.devices(variable.value, variable.place), variable.place)
    return replace(settings, env=env, cuda_visible_devices=devices)


def refuse_more_ranks_than_gpus(name: str, ranks: int | None, devices: str | None, place: SourceLocation) -> None:
    """Raise an error that refers to ``place`` if a node has fewer visible GPUs than ranks."""
    named = values.device_list(devices) if devices else []
    if named and ranks and ranks > len(named):
        visible = f'{plural(len(named), "GPU")} (cuda_visible_devices "{devices}")'
        raise place.error(f"{quoted(name)} would start {plural(ranks, 'rank')} but sees {visible}; give each rank one")


def _why_local(entry: Entry, here: ThisMachine) -> str | None:
    if entry.access:
        return None
    if entry.local:
        return "ansible_connection=local"
    if entry.own.says_how_to_log_in:
        return None
    return here.answers_to(entry.address.value) or here.answers_to(entry.name.value)


def _refuse_shared_gpus(settings: SettledHosts, local: dict[str, str | None]) -> None:
    machines: dict[tuple[object, ...], list[tuple[Entry, Settings]]] = {}
    for name, (entry, config) in settings.items():
        if entry.access:  # an engine gives each host its own
            continue
        # Another port is another sshd: usually in a container, whose GPUs can't be told apart from here.
        way = ("here",) if local[name] else (canonical(entry.address.value), config.port.value if config.port else None)
        machines.setdefault((*way, config.inside and config.inside.value), []).append((entry, config))
    for nodes in machines.values():
        if len(nodes) > values.MAX_NPROC:
            place = nodes[values.MAX_NPROC][0].name.place
            raise place.error(f"more than {values.MAX_NPROC} nodes on one machine, which can't have that many GPUs")
        for index, (entry, config) in enumerate(nodes):
            for other, other_given in nodes[:index]:
                both = f"{quoted(entry.name.value)} and {quoted(other.name.value)} are the same machine"
                devices, other_devices = config.cuda_visible_devices, other_given.cuda_visible_devices
                if not devices or not other_devices:
                    lacking = other if devices else entry
                    raise lacking.name.place.error(f"{both}; set cuda_visible_devices on each, to GPUs of its own")
                if shared := ", ".join(values.shared_devices(devices.value, other_devices.value)):
                    raise devices.place.error(f"{both}, and both use GPU {shared}; give each GPUs of its own")


def _node(rank: int, entry: Entry, settings: Settings, local: str | None, origins: dict[str, str]) -> Node:
    name = entry.name.value
    sources: dict[str, Sourced[Any] | str | None] = {
        "name": entry.name,
        "address": entry.address,
        "python": settings.python or "default",
        "nproc_per_node": settings.nproc_per_node
        or "default: the number of GPUs; without GPUs, 1 (or 2 on the only host)",
        "cuda_visible_devices": settings.cuda_visible_devices,
        "ssh.user": settings.user,
        "ssh.port": settings.port,
        "ssh.identity_file": settings.identity_file,
        "ssh.options": settings.ssh_options,
        "inside.runtime": settings.inside,
        "inside.name": settings.inside,
        **{f"env.{variable}": value for variable, value in settings.env.items()},
    }
    for key, value in sources.items():
        if value:
            origins[f"{name}.{key}"] = value if isinstance(value, str) else str(value.place)
    if local:
        origins[f"{name}.local"] = local
    return Node(
        name=name,
        address=entry.address.value,
        node_rank=rank,
        nproc_per_node=settings.nproc_per_node.value or None if settings.nproc_per_node else None,
        cuda_visible_devices=settings.cuda_visible_devices.value if settings.cuda_visible_devices else None,
        python=settings.python.value if settings.python else "python3",
        access=access(
            *entry.access,
            SshOptions(
                user=settings.user.value if settings.user else None,
                port=settings.port.value if settings.port else None,
                identity_file=settings.identity_file.value if settings.identity_file else None,
                options=settings.ssh_options.value if settings.ssh_options else (),
            ),
            settings.inside.value if settings.inside else InsideOptions(),
        ),
        env={variable: value.value for variable, value in settings.env.items()},
        local=local is not None,
    )


@dataclass(frozen=True)
class Overrides:
    """Options that override the hosts file. None or an empty value means that an option is not given."""

    python: str | None = None
    master_port: int | None = None
    master_addr: str | None = None
    nproc_per_node: int | None = None
    user: str | None = None
    port: int | None = None
    env: tuple[str, ...] = ()
    inside: str | None = None
    engine: str | None = None
    # variables that the launch command sets, which override all others
    line: Mapping[str, str] = field(default_factory=dict)

    def applied(self, cluster: Cluster) -> Cluster:
        """Return the cluster with these options applied, and record each option as the origin of its value."""
        python = None if self.python is None else values.python(self.python, _place("--python"))
        nproc = self.nproc_per_node and values.nproc(str(self.nproc_per_node), _place("--nproc-per-node"))
        login: dict[str, Any] = {
            "user": None if self.user is None else values.user(self.user, _place("--user")),
            "port": self.port and values.port(str(self.port), _place("--port")),
        }
        login = {name: value for name, value in login.items() if value}
        inside = () if self.inside is None else (self._container(self.inside),)
        env = dict(self._variable(item) for item in self.env)
        env_sources = dict.fromkeys(env, "--env") | dict.fromkeys(self.line, LAUNCH_LINE)
        env |= {values.variable(name, _place(LAUNCH_LINE)): value for name, value in self.line.items()}
        devices = env.pop(DEVICES, None)
        if devices is not None:  # stored in one place from here on, as in a hosts file
            devices = values.devices(devices, _place(env_sources[DEVICES]))
        origins = dict(cluster.origins)
        whole: dict[str, object] = {}
        if self.master_port:
            whole["master_port"] = values.port(str(self.master_port), _place("--master-port"))
        if self.master_addr is not None:
            whole["master_addr"] = values.host(self.master_addr, _place("--master-addr"))
        if self.engine is not None:
            whole["engine"] = values.engine(self.engine, _place("--engine"))
        origins |= {name: f"--{name.replace('_', '-')}" for name in whole}
        nodes = []
        for node in cluster.nodes:
            update: dict[str, object] = {"python": python, "nproc_per_node": nproc}
            update = {name: value for name, value in update.items() if value}
            origins |= {f"{node.name}.{name}": f"--{name.replace('_', '-')}" for name in update}
            origins |= {f"{node.name}.ssh.{name}": f"--{name}" for name in login}
            origins |= {f"{node.name}.env.{name}": env_sources[name] for name in env}
            if devices is not None:
                update["cuda_visible_devices"] = devices
                origins[f"{node.name}.cuda_visible_devices"] = env_sources[DEVICES]
            ways = access(replace(node.options(SshOptions), **login), *inside)
            origins |= {f"{node.name}.inside.{name}": "--inside" for item in inside for name in vars(item)}
            env_origins = {**node.env_origins, **env_sources}
            update |= {"access": {**node.access, **ways}, "env": {**node.env, **env}, "env_origins": env_origins}
            nodes.append(node.model_copy(update=update))
            if nproc or devices:
                count, visible = nodes[-1].nproc_per_node, nodes[-1].cuda_visible_devices
                refuse_more_ranks_than_gpus(
                    node.name, count, visible, _place("--nproc-per-node" if nproc else env_sources[DEVICES])
                )
        return cluster.model_copy(update={**whole, "nodes": tuple(nodes), "origins": origins})

    @staticmethod
    def _container(text: str) -> InsideOptions:
        runtime, colon, name = text.partition(":")
        if not colon:
            raise _place("--inside").error(f"{text!r} is not a RUNTIME:NAME, as in docker:train")
        return values.inside(runtime, name, _place("--inside"))

    @staticmethod
    def _variable(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals:
            raise _place("--env").error(f"{text!r} is not a NAME=VALUE")
        return values.variable(name, _place("--env")), values.variable_value(value, _place("--env"))


def _place(option: str) -> SourceLocation:
    return SourceLocation(option, is_file=False)


@dataclass(frozen=True)
class ThisMachine:
    """This machine's names and addresses, in the form that :func:`canonical` returns."""

    names: frozenset[str]
    addresses: frozenset[str]

    def answers_to(self, named: str) -> str | None:
        """Return a phrase that says why ``named`` refers to this machine.

        The result is None if ``named`` is not a known name or address of this machine. No DNS query is sent.
        """
        text = canonical(named)
        if text == "localhost" or is_loopback(text):
            return "a loopback address is this machine"
        if text in self.addresses:
            return "one of this machine's addresses"
        if text in self.names:
            return "this machine's name"
        return None


def this_machine() -> ThisMachine:
    """Return the names and addresses of this machine without a DNS query."""
    name = canonical(socket.gethostname())
    return ThisMachine(frozenset({name, name.partition(".")[0]} - {""}), own_addresses())


def own_addresses() -> frozenset[str]:
    import netifaces

    result = set()
    for interface in netifaces.interfaces():
        addresses = netifaces.ifaddresses(interface)  # empty if it was removed after it was listed
        for family in (netifaces.InterfaceType.AF_INET, netifaces.InterfaceType.AF_INET6):
            result |= {canonical(entry["addr"]) for entry in addresses.get(family, []) if "addr" in entry}
    return frozenset(result)


def canonical(named: str) -> str:
    """Return a host name in lower case, or an address in the canonical spelling of RFC 5952 without its zone."""
    try:
        return str(ipaddress.ip_address(named.partition("%")[0]))
    except ValueError:
        return named.lower()


def own_name() -> str:
    """Return this machine's name up to the first dot, or "localhost" if that name is invalid."""
    name = socket.gethostname().partition(".")[0]
    try:
        return host(name, SourceLocation("this machine", is_file=False))
    except DoctorError:
        return "localhost"


def training_python(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the interpreter that a training job on this machine would use, and the reason for the choice.

    If no virtual environment is active and nccl-doctor runs in one, the interpreter of nccl-doctor's environment is
    used, unless a file shows that pipx or uv created the environment only for nccl-doctor. In all other cases,
    ``python3`` on PATH is used.
    """
    prefix = Path(sys.prefix)
    in_venv = sys.prefix != sys.base_prefix
    for_a_tool = (prefix / "pipx_metadata.json").exists() or (prefix / "uv-receipt.toml").exists()
    if environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or not in_venv or for_a_tool:
        return "python3", "default"
    return os.fspath(sys.executable), "default: the environment that nccl-doctor runs in"
