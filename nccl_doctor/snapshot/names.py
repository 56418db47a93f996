"""What hosts make of the cluster's names: one answer that they share, and of each host only where it deviates.

Of 4,096 hosts and as many names, one answer a pair would be 16 million.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pydantic import PrivateAttr, model_validator

from nccl_doctor.model.base import IpAddress, Observed, ip_address


class ResolverAnswer(Observed):
    """What a resolver makes of one name or address.

    Attributes:
        addresses: of getaddrinfo(3), in its order; empty where it does not resolve.
        error: getaddrinfo's own words, where it does not resolve.
    """

    addresses: tuple[IpAddress, ...]
    error: str | None = None


class Resolution(ResolverAnswer):
    """What a host makes of one name or address of the cluster.

    Attributes:
        source: the local address the kernel would send from to the first address (a UDP connect(2), no packet).
        source_error: errno name of that, e.g. "ENETUNREACH".
    """

    source: IpAddress | None = None
    source_error: str | None = None


Common = Mapping[str, ResolverAnswer]
"""The answers that hosts share, by name."""


class Resolver(Protocol):
    """What one host makes of names."""

    def get(self, name: str) -> Resolution | None:
        """What this host resolves a name to; None where nobody asked it."""


class Names(Observed):
    """What one host makes of the cluster's names.

    Attributes:
        own: where it deviates from the common answer, or from :attr:`source`; in older snapshots every name.
        source: the address it sends from to all others.
    """

    own: dict[str, Resolution]
    source: IpAddress | None = None
    _common: Common = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _every_name_of_older_snapshots(cls, data: Any) -> Any:  # noqa: ANN401 - whatever stands there
        told = data.get("own") if isinstance(data, dict) else None
        relative = isinstance(told, dict) and "addresses" not in told and data.keys() <= {"own", "source"}
        return data if relative or not isinstance(data, dict) else {"own": data}

    @property
    def common(self) -> Common:
        """What holds for the names that are not in ``own``; an address of the list is itself."""
        return self._common

    def beside(self, common: Common) -> Names:
        """The same in terms of these common answers (:attr:`Snapshot.names`)."""
        return self._made(self.own, common)

    def get(self, name: str) -> Resolution | None:
        """What the host makes of a name; None where it was not asked."""
        if name in self.own:
            return self.own[name]
        told = self.shared(name)
        if told is None:
            return None
        source = self.source if told.addresses else None
        return Resolution.model_construct(addresses=told.addresses, error=told.error, source=source, source_error=None)

    def shared(self, name: str) -> ResolverAnswer | None:
        """The common answer for a name, or the address that the name itself is."""
        return self._common.get(name) or (None if self.source is None else literal(name))

    def relative_to(self, common: Common, changed: Iterable[str]) -> Names:
        """The same in terms of another common answer, which differs in these names alone."""
        before = {name: told for name in changed if (told := self.get(name)) is not None}
        own = {name: told for name, told in (before | self.own).items() if not self._follows(name, told, common)}
        return self._made(own, common)

    def _made(self, own: dict[str, Resolution], common: Common) -> Names:
        made = Names.model_construct(own=own, source=self.source)
        made._common = common  # noqa: SLF001 - of the same class
        return made

    def _follows(self, name: str, told: Resolution, common: Common) -> bool:
        shared = common.get(name) or (None if self.source is None else literal(name))
        if shared is None or (told.addresses, told.error) != (shared.addresses, shared.error):
            return False
        return (told.source, told.source_error) == (self.source if told.addresses else None, None)


def literal(name: str) -> ResolverAnswer | None:
    """What everybody makes of an address; None for a name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
        return ResolverAnswer.model_construct(addresses=(ip_address(name),), error=None)
    except ValueError:
        return None


def told_of(names: Iterable[Names]) -> dict[str, set[str]]:
    """By name, all addresses that any of these hosts makes of it."""
    found: dict[str, set[str]] = {}
    common: Common = {}
    for one in names:
        if one.common is not common:  # all hosts of a snapshot share one table
            common = one.common
            for name, answer in common.items():
                found.setdefault(name, set()).update(answer.addresses)
        for name, told in one.own.items():
            found.setdefault(name, set()).update(told.addresses)
    return found


def deviations(hosts: Mapping[str, Names]) -> dict[str, dict[str, Resolution]]:
    """By name, what those hosts make of it that deviate from the common answer."""
    found: dict[str, dict[str, Resolution]] = {}
    for host, names in hosts.items():
        for name, told in names.own.items():
            found.setdefault(name, {})[host] = told
    return found
