"""How long the search for who breaks the all-reduce may take, whoever keeps silent: on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from nccl_doctor.collect.smoke import isolation
from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.crew.answers import Contract, NoAnswerError, ProbeError, TrialEnd
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.report import IsolationReport
from tests.checks.snapshots import patched

REQUESTS = ("prepare_trials", "trial", "free_port", "end_launcher")


@dataclass
class Clock:
    """Stands in the place of the module ``time``: it goes on where somebody is waited for in vain."""

    now: float = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@dataclass
class Host:
    """A session whose host gives no answer to some requests."""

    node: Node
    clock: Clock
    silent: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)

    def ask(self, contract: Contract[Any], deadline: float, **_arguments: Any) -> Any:
        """At once, or not before the deadline."""
        do = contract.name
        self.asked.append(do)
        if do in self.silent:
            self.clock.now = max(self.clock.now, deadline)
            raise NoAnswerError("no answer in time")
        return {"trial": TrialEnd(ok=True), "free_port": 40000}.get(do)


@pytest.mark.parametrize("silent", [*({one} for one in REQUESTS), set(REQUESTS)], ids=[*REQUESTS, "all"])
@pytest.mark.parametrize("left_s", [0, 2, 7, 13, 18, 25, 31, 47, 300])
def test_nobody_is_waited_for_beyond_the_end(monkeypatch: pytest.MonkeyPatch, silent: set[str], left_s: float) -> None:
    clock = Clock()
    monkeypatch.setattr(isolation, "time", clock)
    snapshot = patched({})
    hosts = [Host(node, clock) for node in snapshot.cluster.nodes]
    hosts[1].silent = frozenset(silent)
    facts = {host.name: host.facts for host in snapshot.hosts if host.facts is not None}
    until = clock.now + left_s
    found: IsolationReport | str
    try:
        found = isolation.run(hosts, facts, snapshot.cluster, SmokeLimits(backend="gloo"), until)  # type: ignore[arg-type]
    except ProbeError as error:
        found = str(error)
    assert clock.now <= until
    assert all(host.asked[-1:] == ["end_launcher"] for host in hosts), "whoever began is told to end"
    if left_s == 300 and silent == {"trial"}:
        assert isinstance(found, IsolationReport)
        assert (found.culprit, found.hosts) == ("host", ("node2",))
    if left_s == 300 and "prepare_trials" in silent:
        assert found == "node2: no answer in time"
