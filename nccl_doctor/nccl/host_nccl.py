"""A host's side of the question: its addresses, its variables, and which interface NCCL uses there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.report import NcclInterface
from nccl_doctor.nccl.interfaces import Choice, Chosen, choose, choose_all
from nccl_doctor.nccl.variables import Variable, resolve
from nccl_doctor.nccl.versions import CONF_FILE, OLDEST, Version, oldest_with, parse_version, show
from nccl_doctor.snapshot.hosts import Host, HostFacts
from nccl_doctor.snapshot.network import Interfaces, Link, Names, Route
from nccl_doctor.snapshot.system import LibncclAnswer
from nccl_doctor.text.inet import Network, address_of, network_of, prefix_length

_AS_IT_IS: Mapping[str, str] = {}


@dataclass(frozen=True)
class HostNccl:
    """NCCL's view of a host, and its choice there.

    Attributes:
        machine: equal for two nodes on one machine and in one network namespace; None where not known. The boot id
            alone won't do, for containers share it.
        unreachable: addresses to which the kernel has no way, with the errno name that it gave.
        choice: of libnccl where it was asked, else of the model.
        disagreement: what libnccl and the model say, where they differ; of the model's source, how libnccl failed.
    """

    host: str
    machine: str | None
    interfaces: Interfaces
    routes: tuple[Route, ...] | Unknown
    unreachable: dict[str, str]
    variables: dict[str, Variable]
    version: Version | None
    choice: Choice
    source: Literal["libnccl", "model"]
    disagreement: str | None = None

    @property
    def chosen(self) -> Chosen | None:
        """Where the bootstrap listens; None where NCCL ends without an interface."""
        return self.choice.bootstrap if isinstance(self.choice.bootstrap, Chosen) else None

    @property
    def summary(self) -> NcclInterface | None:
        """The choice as reports show it."""
        if self.chosen is None:
            return None
        version = show(self.version) if self.version is not None else None
        return NcclInterface(
            name=self.chosen.name, address=self.chosen.address, nccl_version=version, source=self.source
        )

    @property
    def interface(self) -> NcclInterface | None:
        """The one that NCCL uses; None where it ends without one, as libnccl may although by its rules there is one."""
        return None if self.source == "model" and self.disagreement is not None else self.summary

    def link(self, interface: str) -> Link | None:
        """The link of an interface or of its alias ("eth0:1")."""
        name = interface.partition(":")[0]
        return next((link for link in self.interfaces.links if link.name == name), None)

    def networks(self, address: str) -> list[Network]:
        """The networks of the entries that carry this address."""
        return [
            network_of(f"{entry.address}/{prefix_length(entry.netmask)}")
            for entry in self.interfaces.addresses
            if entry.address == address and entry.netmask is not None
        ]

    def owns(self, address: str) -> bool:
        """True where the address is one of the host's own."""
        return any(entry.address == address for entry in self.interfaces.addresses)

    def route_to(self, address: str) -> Route | None:
        """The route of the main table that the kernel would take; None where there is none or none was read."""
        there = address_of(address)
        fitting = (
            route for network, route in self._routes_by_merit if network.version == there.version and there in network
        )
        return next(fitting, None)

    @cached_property
    def _routes_by_merit(self) -> list[tuple[Network, Route]]:
        """Longest prefix first, then lowest metric: the first that fits is the kernel's."""
        routes = () if isinstance(self.routes, Unknown) else self.routes
        parsed = [(network_of(route.destination), route) for route in routes]
        return sorted(parsed, key=lambda item: (-item[0].prefixlen, item[1].metric))


def host_nccl(
    host: Host, overrides: Mapping[str, str] = _AS_IT_IS, version: Version | None = None
) -> HostNccl | Unknown:
    """NCCL's view of a host that was reached, and its choice; Unknown where a fact that it depends on is.

    Args:
        host: with its facts.
        overrides: variables in addition to the hosts file's; libnccl was asked without them, so the model answers.
        version: answer as this version would; the host's own where None.
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
    # what kept libnccl from answering is no answer: the model's stands, and the report says whose it is
    answer = facts.libnccl if asked_as_is and isinstance(facts.libnccl, LibncclAnswer) else None
    answered = None if answer is None else _libnccl_choice(facts.interfaces, answer)
    seen, disagreement = (choice, None) if answer is None else _with_answer(choice, answered, answer)
    if isinstance(seen, Unknown):
        return seen
    return HostNccl(
        host=host.name,
        machine=_machine(facts, facts.interfaces),
        interfaces=facts.interfaces,
        routes=facts.routes,
        unreachable={
            seen.addresses[0]: seen.source_error for seen in names.own.values() if seen.addresses and seen.source_error
        },
        variables=variables,
        version=version,
        choice=seen,
        source="model" if answered is None else "libnccl",
        disagreement=disagreement,
    )


def _whichever(host: Host, facts: HostFacts, overrides: Mapping[str, str], interfaces: Interfaces) -> Choice | Unknown:
    """The choice that all versions make which the host's torch can have."""
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


def _machine(facts: HostFacts, interfaces: Interfaces) -> str | None:
    if isinstance(facts.identity, Unknown) or facts.identity.boot_id is None:
        return None
    return " ".join((facts.identity.boot_id, *sorted(f"{e.interface}={e.address}" for e in interfaces.addresses)))


def _variables(
    host: Host, facts: HostFacts, overrides: Mapping[str, str], version: Version | None
) -> dict[str, Variable] | Unknown:
    if isinstance(facts.env, Unknown):
        return facts.env
    if isinstance(facts.config_files, Unknown):
        return facts.config_files
    return resolve({**host.node.env, **overrides}, facts.env, facts.config_files, version)


def _libnccl_choice(interfaces: Interfaces, answer: LibncclAnswer) -> Chosen | None:
    """Libnccl's own choice; where its log line could not be read, by the address in the id that it gave."""
    name, address = answer.interface, answer.address
    if name is None and address is not None:
        name = next((entry.interface for entry in interfaces.addresses if entry.address == address), None)
    return None if name is None or address is None else Chosen(name, address, "libnccl itself says so")


def _with_answer(
    choice: Choice | Unknown, answered: Chosen | None, answer: LibncclAnswer
) -> tuple[Choice | Unknown, str | None]:
    """The choice, with libnccl's own word over the model's, and how they differ."""
    modelled = choice.bootstrap if isinstance(choice, Choice) else None
    expected = f"{modelled.name} ({modelled.address})" if isinstance(modelled, Chosen) else "none"
    if answered is None:
        failed = answer.version is not None and answer.error is not None and isinstance(modelled, Chosen)
        words = f"libnccl {answer.version} ended with “{answer.error}”; the model of it uses {expected}"
        return choice, words if failed else None
    if isinstance(choice, Unknown):
        return Choice(answered, (answered,)), None
    if isinstance(modelled, Chosen) and (modelled.name, modelled.address) == (answered.name, answered.address):
        return choice, None
    words = f"libnccl {answer.version} uses {answered.name} ({answered.address}); the model of it uses {expected}"
    return replace(choice, bootstrap=answered), words


def nccl_version(facts: HostFacts) -> Version | None:
    """The NCCL that the host's torch loads, or the one that was asked; None where nobody knows."""
    of_torch = facts.torch.nccl if facts.torch is not None and not isinstance(facts.torch, Unknown) else None
    for text in (of_torch, facts.libnccl.version if isinstance(facts.libnccl, LibncclAnswer) else None):
        if text is not None:
            try:
                return parse_version(text)
            except ValueError:
                continue
    return None


def nccl_interface(host: Host) -> NcclInterface | None:
    """The interface that NCCL uses on a host; None where it ends without one, or nobody can tell."""
    one = host_nccl(host)
    return one.interface if isinstance(one, HostNccl) else None
