"""The meaning of the hosts file's names: to this machine, and to hosts, each of which tells only where it differs."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any

from nccl_doctor.collect.connect.reach import fan_out
from nccl_doctor.model.base import IpAddress, Unknown, ip_address
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot.network import Names, ResolverAnswer, literal
from nccl_doctor.text.inet import numeric
from nccl_doctor.transport.ssh.settings import ssh_alias

MOST = 8
"""Answers that are learnt from: each a table of all names."""


class CommonNames:
    """A table that grows with the first hosts' answers; what a host makes of its own names is never learnt."""

    def __init__(self, cluster: Cluster) -> None:
        self._wanted = dict.fromkeys(sorted({cluster.master_addr, *(node.address for node in cluster.nodes)}))
        self._lock = threading.Lock()
        self._tables: list[dict[str, ResolverAnswer]] = [{}]
        self._asked: dict[str, tuple[dict[str, ResolverAnswer], str]] = {}
        self._request = _packed(dict.fromkeys(self._wanted))

    @property
    def common(self) -> dict[str, ResolverAnswer]:
        """As far as it is known."""
        return self._tables[-1]

    def known_to(self, node: Node) -> str:
        """Packs the names for a host (probe/facts/network.py unpacks them); the same at every call."""
        with self._lock:
            return self._asked.setdefault(node.name, (self.common, self._request))[1]

    def learn(self, node: Node, names: Names) -> None:
        """Takes what a host made of the names; of an error and addresses, the addresses."""
        with self._lock:
            before = self.common
            if len(self._tables) > MOST:
                return
            new = {
                name: ResolverAnswer.model_construct(addresses=answer.addresses, error=answer.error)
                for name, answer in names.own.items()
                if name in self._wanted and name not in (node.address, node.name) and literal(name) is None
                if name not in before or (answer.addresses and not before[name].addresses)
                if not (answer.error or "").startswith("no answer in ")
            }
            if new:
                self._tables.append({**before, **new})
                rows = {name: [list(told.addresses), told.error] for name, told in self.common.items()}
                self._request = _packed({name: rows.get(name) for name in self._wanted})

    def final(self, name: str, names: Names | Unknown) -> Names | Unknown:
        """The answers of the host of this name, in terms of the last table."""
        if isinstance(names, Unknown):
            return names
        asked, last = self._asked[name][0], self.common
        changed = [] if asked is last else [one for one, told in asked.items() if last[one] != told]
        return names.beside(asked).relative_to(last, changed)


def _packed(names: dict[str, list[Any] | None]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(names).encode())).decode()


def look_up(names: Iterable[str], within_s: float) -> dict[str, tuple[IpAddress, ...]]:
    """Addresses by name, of getaddrinfo(3) or ~/.ssh/config; without those that did not come in time."""
    wanted = [name for name in dict.fromkeys(names) if numeric(name) is None]
    found = fan_out(
        lambda name: _addresses(name) or _addresses(ssh_alias(name)), wanted, until=time.monotonic() + within_s
    )
    return {name: told for name, told in zip(wanted, found, strict=True) if told and not isinstance(told, Exception)}


def _addresses(name: str | None) -> tuple[IpAddress, ...]:
    if name is None:
        return ()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()  # a name that does not resolve confirms nothing
    return tuple(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in found))
