"""What hosts make of the cluster's names, told to those that are asked later: each tells only where it deviates."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Mapping
from typing import Any

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot import Names, ResolverAnswer, Unknown
from nccl_doctor.snapshot.names import literal

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
        """What a host is told of the names, packed (probe/facts/names.py); the same at every call."""
        with self._lock:
            return self._asked.setdefault(node.name, (self.common, self._request))[1]

    def learn(self, node: Node, told: Names) -> None:
        """Takes what a host made of the names; of an error and addresses, the addresses."""
        with self._lock:
            told.share(self._asked[node.name][0])
            before = self.common
            if len(self._tables) > MOST:
                return
            new = {
                name: ResolverAnswer.model_construct(addresses=one.addresses, error=one.error)
                for name, one in told.own.items()
                if name in self._wanted and name not in (node.address, node.name) and literal(name) is None
                if name not in before or (one.addresses and not before[name].addresses)
                if not (one.error or "").startswith("no answer in ")
            }
            if new:
                self._tables.append({**before, **new})
                self._request = _packed({name: _row(self.common.get(name)) for name in self._wanted})

    def final(self, told: Names | Unknown) -> Names | Unknown:
        """What a host told, in terms of the last table."""
        if isinstance(told, Unknown):
            return told
        return told.relative_to(self.common, _changed(told.common, self.common))


def _changed(before: Mapping[str, ResolverAnswer], after: Mapping[str, ResolverAnswer]) -> list[str]:
    return [] if before is after else [name for name, told in before.items() if after[name] != told]


def _packed(names: dict[str, list[Any] | None]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(names).encode())).decode()


def _row(told: ResolverAnswer | None) -> list[Any] | None:
    return None if told is None else [list(told.addresses), told.error]
