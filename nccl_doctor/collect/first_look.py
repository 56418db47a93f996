"""The first phase of a run: every host is reached, and asked what it knows of itself as soon as it is there."""

from __future__ import annotations

from functools import partial

from nccl_doctor.collect import outside
from nccl_doctor.collect.answers import OwnFaultError
from nccl_doctor.collect.asking import failure_of
from nccl_doctor.collect.clock import Clock
from nccl_doctor.collect.facts import NO_FACTS, Asking, failure
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.options import Progress, RunOptions
from nccl_doctor.collect.reach import CONNECT_S, Reach
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.collect.smoke import begin_import
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.measured import Load
from nccl_doctor.snapshot import AnyAccessFailure, HostFacts, ResolverAnswer
from nccl_doctor.transport.base import Transport


class FirstLook:
    """What the hosts of a cluster tell of themselves.

    Attributes:
        opened: by host, its session; filled as they are reached, for whoever is interrupted must close them.
        failures: why a host was not reached, or did not answer.
        facts: of each host that answered.
        names: what all hosts know of the cluster's names alike.
        load: how busy this machine and the hosts were meanwhile; None before the end.
    """

    def __init__(self, cluster: Cluster, options: RunOptions, progress: Progress, clock: Clock) -> None:
        self._cluster, self._options, self._progress, self._clock = cluster, options, progress, clock
        self.opened: dict[str, ProbeSession] = {}
        self.failures: dict[str, AnyAccessFailure] = {}
        self.facts: dict[str, HostFacts] = {}
        self.names: dict[str, ResolverAnswer] = {}
        self.load: Load | None = None
        self._awaited = {node.name for node in cluster.nodes}
        self._answered: set[str] = set()

    def over(self, transport: Transport) -> list[ProbeSession]:
        """Reaches and asks all; the sessions of those that answered, in the cluster's order."""
        names = {self._cluster.master_addr, *(node.address for node in self._cluster.nodes)}
        around = partial(outside.look, transport, names)
        asking = Asking(self._cluster, self._options.facts_limits, self._clock.until, around)

        def look(session: ProbeSession, share: float) -> None:
            if self._options.smoke:
                begin_import(session, self._clock.until)
            asking(session, share)

        reach = Reach(
            transport,
            self._options.connect_s,
            self._clock.until,
            self._connected,
            look=look,
            on_looked=self._looked,
            silence_s=self._options.silence_s,
            opened=self.opened,
            failures=self.failures,
        )
        hosts = [node.name for node in self._cluster.nodes]
        self._progress.phase("connecting", hosts, self._clock.within(self._options.connect_s or CONNECT_S))
        with self._clock.timed("probe"):
            self.load = reach.all(self._cluster.nodes)
        self._clock.timings["connect"] = reach.connected_s
        self._clock.timings["probe"] -= reach.connected_s
        self.facts, self.names = asking.all(), asking.common
        silent = [name for name in hosts if name in reach.unanswered.keys() - self.facts.keys()]
        whys = fan_out(lambda name: failure(reach.unanswered[name], self.opened[name], self._clock.until), silent)
        for name, why in zip(silent, whys, strict=True):
            lost = failure_of(OwnFaultError(why), "facts", NO_FACTS) if isinstance(why, Exception) else why
            self.failures[name] = lost
        return [self.opened[name] for name in hosts if name in self.facts]

    def _connected(self, name: str) -> None:
        self._progress.done(name)
        self._clock.busy(name, "connect", 0.0)
        if self._awaited == {name}:
            self._progress.phase("asking", [name for name in self.opened if name not in self._answered])
        self._awaited.discard(name)

    def _looked(self, name: str) -> None:
        self._answered.add(name)
        self._clock.busy(name, "probe", self._clock.spent.get(name, {}).get("connect", (0.0, 0.0))[1])
        if not self._awaited:
            self._progress.done(name)
