"""NCCL on one host: the host's addresses and variables, and the interface that NCCL chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.report import NcclInterface
from nccl_doctor.nccl.interfaces import Chosen, ChosenInterfaces, choose, choose_all
from nccl_doctor.nccl.rdma import LAYERS, list_rdma
from nccl_doctor.nccl.variables import HOSTS_FILE, Variable, resolve
from nccl_doctor.nccl.versions import CONF_FILE, OLDEST, VersionNumbers, oldest_with, parse_version, show
from nccl_doctor.snapshot.hosts import Host, HostFacts
from nccl_doctor.snapshot.network import Interfaces, Link, Names, Route
from nccl_doctor.snapshot.system import LibncclAnswer
from nccl_doctor.text.inet import Network, address_of, network_of, prefix_length

_AS_IT_IS: Mapping[str, str] = {}


@dataclass(frozen=True)
class HostNccl:
    """A host's addresses, routes and variables as NCCL sees them, and the interface that NCCL chooses on the host."""

    host: str
    machine: str | None  # equal for two nodes on one machine and in one network namespace (containers share a boot id)
    interfaces: Interfaces
    routes: tuple[Route, ...] | Unknown
    unreachable: dict[str, str]  # addresses without a route, with the name of the kernel's errno
    variables: dict[str, Variable]
    version: VersionNumbers | None
    choice: ChosenInterfaces  # libnccl's choice if it was queried, otherwise the model's
    source: Literal["libnccl", "model"]
    # the answers of libnccl and the model, if they differ; for a model's choice, why libnccl failed
    disagreement: str | None = None

    @property
    def chosen(self) -> Chosen | None:
        """The interface on which the bootstrap listens, or None if NCCL finds no interface and fails."""
        return self.choice.bootstrap if isinstance(self.choice.bootstrap, Chosen) else None

    @property
    def values(self) -> dict[str, str]:
        return {name: variable.value for name, variable in self.variables.items()}

    @property
    def summary(self) -> NcclInterface | None:
        if self.chosen is None:
            return None
        version = show(self.version) if self.version is not None else None
        name, address = self.chosen.name, self.chosen.address
        return NcclInterface(name=name, address=address, nccl_version=version, source=self.source)

    @property
    def interface(self) -> NcclInterface | None:
        """The interface that NCCL uses, or None if NCCL finds no interface or if the host's libnccl failed."""
        return None if self.source == "model" and self.disagreement is not None else self.summary

    def link(self, interface: str) -> Link | None:
        """Return the link of an interface or of an alias such as "eth0:1"."""
        name = interface.partition(":")[0]
        return next((link for link in self.interfaces.links if link.name == name), None)

    def networks(self, address: str) -> list[Network]:
        return [
            network_of(f"{entry.address}/{prefix_length(entry.netmask)}")
            for entry in self.interfaces.addresses
            if entry.address == address and entry.netmask is not None
        ]

    def owns(self, address: str) -> bool:
        return any(entry.address == address for entry in self.interfaces.addresses)

    def route_to(self, address: str) -> Route | None:
        """Return the route in the main table that the kernel would use, or None if no route matches."""
        there = address_of(address)
        return next((route for network, route in self.routes_by_merit if there in network), None)

    @cached_property
    def routes_by_merit(self) -> list[tuple[Network, Route]]:
        routes = () if isinstance(self.routes, Unknown) else self.routes
        parsed = [(network_of(route.destination), route) for route in routes]
        return sorted(parsed, key=lambda item: (-item[0].prefixlen, item[1].metric))


def host_nccl(
    host: Host, overrides: Mapping[str, str] = _AS_IT_IS, version: VersionNumbers | None = None
) -> HostNccl | Unknown:
    """Return the host as NCCL sees it, or Unknown if the host was not reached or a necessary fact is unknown.

    ``overrides`` replaces variables of the host, and ``version`` replaces the host's NCCL version.
    """
    facts = host.facts
    if facts is None:
        return unknown(f"{host.name} was not reached")
    asked_as_is = not overrides and version is None
    version = version or nccl_version(facts)
    variables = _variables(host, facts, overrides, version)
    if isinstance(facts.interfaces, Unknown):
        return facts.interfaces
    if isinstance(variables, Unknown):
        return variables
    values = {name: variable.value for name, variable in variables.items()}
    names = facts.resolution if isinstance(facts.resolution, Names) else Names(own={})
    choice = (
        _whichever(host, facts, overrides, facts.interfaces)
        if version is None
        else choose(facts.interfaces, values, version, names)
    )
    # if libnccl could not answer, the model's answer stands, and the report says so
    answer = facts.libnccl if asked_as_is and isinstance(facts.libnccl, LibncclAnswer) else None
    answered = None
    # if its log line could not be parsed, by the address in its id
    if answer is not None and answer.address is not None:
        owners = (entry.interface for entry in facts.interfaces.addresses if entry.address == answer.address)
        name = answer.interface if answer.interface is not None else next(owners, None)
        answered = None if name is None else Chosen(name, answer.address, "libnccl itself says so")
    result, disagreement = (choice, None) if answer is None else _with_answer(choice, answered, answer)
    if isinstance(result, Unknown):
        return result
    boot = None if isinstance(facts.identity, Unknown) else facts.identity.boot_id
    addresses = sorted(f"{entry.interface}={entry.address}" for entry in facts.interfaces.addresses)
    lost = (name for name in names.own.values() if name.addresses and name.source_error)
    return HostNccl(
        host=host.name,
        machine=None if boot is None else " ".join((boot, *addresses)),
        interfaces=facts.interfaces,
        routes=facts.routes,
        unreachable={name.addresses[0]: name.source_error or "" for name in lost},
        variables=variables,
        version=version,
        choice=result,
        source="model" if answered is None else "libnccl",
        disagreement=disagreement,
    )


def _whichever(
    host: Host, facts: HostFacts, overrides: Mapping[str, str], interfaces: Interfaces
) -> ChosenInterfaces | Unknown:
    """Return NCCL's choice if all NCCL versions that the host's torch might use make this choice, or else Unknown."""
    torch = facts.torch
    names = facts.resolution if isinstance(facts.resolution, Names) else Names(own={})
    old, new = (_variables(host, facts, overrides, version) for version in (OLDEST, CONF_FILE))
    if isinstance(old, Unknown):
        return old
    if isinstance(new, Unknown):
        return new
    return choose_all(
        interfaces,
        {name: variable.value for name, variable in new.items()},
        names,
        before_conf_file={name: variable.value for name, variable in old.items()},
        oldest=OLDEST if torch is None or isinstance(torch, Unknown) else oldest_with(torch.version),
    )


def _variables(
    host: Host, facts: HostFacts, overrides: Mapping[str, str], version: VersionNumbers | None
) -> dict[str, Variable] | Unknown:
    if isinstance(facts.env, Unknown):
        return facts.env
    if isinstance(facts.config_files, Unknown):
        return facts.config_files
    variables = resolve({**host.node.env, **overrides}, facts.env, facts.config_files, version)
    origins = host.node.env_origins
    return (
        variables
        if isinstance(variables, Unknown)
        else {
            name: replace(entry, origin=origins[name]) if entry.origin == HOSTS_FILE and name in origins else entry
            for name, entry in variables.items()
        }
    )


def _with_answer(
    choice: ChosenInterfaces | Unknown, answered: Chosen | None, answer: LibncclAnswer
) -> tuple[ChosenInterfaces | Unknown, str | None]:
    modelled = choice.bootstrap if isinstance(choice, ChosenInterfaces) else None
    expected = f"{modelled.name} ({modelled.address})" if isinstance(modelled, Chosen) else "none"
    if answered is None:
        failed = answer.version is not None and answer.error is not None and isinstance(modelled, Chosen)
        words = f'libnccl {answer.version} ended with "{answer.error}"; the model of it uses {expected}'
        return choice, words if failed else None
    if isinstance(choice, Unknown):
        return ChosenInterfaces(answered, (answered,)), None
    if isinstance(modelled, Chosen) and (modelled.name, modelled.address) == (answered.name, answered.address):
        return choice, None
    words = f"libnccl {answer.version} uses {answered.name} ({answered.address}); the model of it uses {expected}"
    return replace(choice, bootstrap=answered), words


def nccl_version(facts: HostFacts) -> VersionNumbers | None:
    """Return the NCCL version that the host's torch loads.

    If torch's NCCL version is unknown, return the version of the libnccl that nccl-doctor queried, or None if that
    version is unknown, too.
    """
    of_torch = facts.torch.nccl if facts.torch is not None and not isinstance(facts.torch, Unknown) else None
    for text in (of_torch, facts.libnccl.version if isinstance(facts.libnccl, LibncclAnswer) else None):
        if text is not None:
            try:
                return parse_version(text)
            except ValueError:
                continue
    return None


def socket_interfaces(host: Host) -> tuple[Chosen, ...]:
    """Return the interfaces over which NET/Socket transfers data.

    The result does not depend on whether the host has GPUs.

    The result is empty if NCCL might use RDMA devices or a network plugin, or if a necessary fact is unknown.
    """
    side = host_nccl(host)
    if not isinstance(side, HostNccl) or host.facts is None:
        return ()
    known = not isinstance(host.facts.rdma, Unknown)
    devices = () if isinstance(host.facts.rdma, Unknown) else host.facts.rdma
    listing = list_rdma(devices, side.values, side.version)
    if known and not devices:
        uses_sockets = True
    elif listing.off is not None:
        uses_sockets = side.values.get("NCCL_NET", "").lower() in ("", "ib", "socket")
    else:  # an active port of another link layer, such as an EFA port, is used by a plugin
        active = (port for device in devices for port in device.ports if port.state == "ACTIVE")
        uses_sockets = known and not listing.entries and all(port.link_layer in LAYERS for port in active)
    return side.choice.net_socket if uses_sockets else ()


def nccl_interface(host: Host) -> NcclInterface | None:
    """Return the interface that NCCL uses on a host.

    The result is None if NCCL finds no interface, or if it is unknown which interface NCCL uses.
    """
    result = host_nccl(host)
    return result.interface if isinstance(result, HostNccl) else None
