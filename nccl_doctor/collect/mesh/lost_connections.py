"""Finds network paths on which some connections are lost while others succeed.

If one link of a bond or one path of a multipath route is dead, the losses depend on the ports; otherwise, they are
random.

On a lossy path, most connections of the mesh succeed, and a failed attempt succeeds when it is repeated from another
source port. To detect losses, a host opens many connections to one port simultaneously. Only unanswered and
retransmitted SYN packets, as reported by the kernels, are counted, so busy programs at either end do not matter. In a
test with 22 runnable processes per CPU, none of 4,864 connections over a healthy path was lost or late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from nccl_doctor.collect.mesh import plan
from nccl_doctor.crew.answers import Dialled, DialRow
from nccl_doctor.crew.parallel import Window, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.snapshot.mesh import LostConnections
from nccl_doctor.text.hostlist import grouped

DIALS = 64  # dials at once, each from a source port of its own; one dead route of sixteen loses four of them
MANY_DIALS = 32  # the same in a larger mesh, in which many pairs share a route
FEW_HOSTS = 16
REPEATS = 8  # dials to a port that was late on a path that loses packets: a closed port loses them all
MOST_LATE = 64  # late dials of a host that are repeated
MOST_TRIALS = 16  # trials of one host at once
SILENT_S = 1.5  # seconds for a dial where nothing answered: a connection is there at once, or after a second
MOST_PEERS = 4  # trials of one listener, which keeps a limited number of connections (probe/mesh/mesh.py)
DialAnswers = list[Dialled | Exception]


@dataclass(frozen=True)
class DialTrial:
    """A trial of many connections from the host at index ``place`` to one port of its target at index ``index``."""

    place: int
    index: int
    port: int


@dataclass(frozen=True)
class ConnectionTrials:
    """Trials of the paths of a mesh; ``targets`` is keyed by dialling host, and answers are in the order of the hosts.

    Attributes:
        first: the answers from before failed attempts were repeated; ``answers`` contains the answers after the
            repetition.
        dial: function that makes a host dial targets, with a time limit in seconds for each connection attempt.
        dial_s: time limit, in seconds, for one connection attempt.
        master: name and port of the master. Successful connections to the master port are ignored, since firewalls
            often open only this port.
    """

    sessions: list[ProbeSession]
    targets: dict[str, list[plan.DialTarget]]
    first: DialAnswers
    answers: DialAnswers
    dial: Callable[[ProbeSession, list[plan.DialTarget], float], Dialled]
    dial_s: float
    master: tuple[str, int]

    def run(self) -> tuple[DialAnswers, tuple[LostConnections, ...]]:
        """Return the updated answers and all lossy paths.

        If the losses on a path depend on the port, a failure is added to the answers.

        If a path has random loss, late attempts from or to its two hosts are repeated, and those that succeed do not
        count as failed. If a path loses connections, the paths between its two hosts and other hosts are also tested.
        """
        trials: dict[tuple[int, int], DialTrial] = {}
        for trial in (*self._doubtful(), *self._neighbours()):
            trials.setdefault((trial.place, trial.index), trial)
        losses = self._losses(trials.values())
        losses += self._losses(self._silent(), min(self.dial_s, SILENT_S))
        ends = {(way.src, way.dst) for way, _, _ in losses}
        losses += self._losses(trial for trial in self._beside(ends) if (trial.place, trial.index) not in trials)
        answered = self._answered_later({name for way, *_ in losses if not way.by_port for name in (way.src, way.dst)})
        lost = grouped((trial.place, row) for way, trial, row in losses if way.by_port and row is not None)
        answers = list(self.answers)
        for place, after in enumerate(self.answers):
            if isinstance(after, Dialled):
                failed = [row for row in after.failed if DialTrial(place, row.target, row.port) not in answered]
                known = {row[:2] for row in failed}
                failed += [row for row in lost.get(place, ()) if row[:2] not in known]
                update = {"connected": after.connected + len(after.failed) - len(failed), "failed": tuple(failed)}
                answers[place] = after.model_copy(update=update)
        return answers, tuple(way for way, _, _ in losses)

    def _answered_later(self, hosts: set[str]) -> set[DialTrial]:
        """Repeat the late attempts from or to ``hosts`` a few times, and return the attempts that succeeded."""
        late: dict[int, list[DialTrial]] = {}
        for place, (name, after) in enumerate(zip(self._names, self.answers, strict=True)):
            rows = () if isinstance(after, Exception) else after.failed
            ends = (DialTrial(place, row.target, row.port) for row in rows if _is_late(row))
            if mine := [trial for trial in ends if not hosts.isdisjoint((name, self._target(trial).dst))]:
                late[place] = mine[:MOST_LATE]

        def repeated(again: list[DialTrial]) -> list[DialTrial]:
            wanted = [replace(self._target(trial), ports=(trial.port,)) for trial in again]
            reply = self.dial(self.sessions[again[0].place], [to for to in wanted for _ in range(REPEATS)], self.dial_s)
            vain = Counter(row.target // REPEATS for row in reply.failed)
            return [trial for at, trial in enumerate(again) if vain[at] < REPEATS]

        reply = fan_out(repeated, list(late.values()), window=Window())
        return {trial for each in reply if not isinstance(each, Exception) for trial in each}

    @cached_property
    def _names(self) -> list[str]:
        return [session.node.name for session in self.sessions]

    def _target(self, trial: DialTrial) -> plan.DialTarget:
        return self.targets[self._names[trial.place]][trial.index]

    def _reached(self, place: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the index of each target that a host reached, with the answering ports except the master port."""
        after, name = self.answers[place], self._names[place]
        if isinstance(after, Exception):
            return
        failed = {(row.target, row.port) for row in after.failed}
        for index, to in enumerate(self.targets[name]):
            ports = [port for port in to.ports if (index, port) not in failed and (to.dst, port) != self.master]
            if ports and to.dst != name:
                yield index, ports

    def _doubtful(self) -> Iterator[DialTrial]:
        """Yield trials of targets that answered on one port but not on another, or only when dialled again."""
        for place, before in enumerate(self.first):
            reached = dict(self._reached(place))
            rows = [] if isinstance(before, Exception) else [row for row in before.failed if _is_late(row)]
            for row in {row.target: row for row in rows if row.target in reached}.values():
                yield DialTrial(place, row.target, row.port)

    def _silent(self) -> Iterator[DialTrial]:
        """Yield trials of targets that no connection attempt reached, if there are only two hosts.

        On a path that loses half of its connections, all three connection attempts fail in one mesh out of eight. With
        two hosts, no other pair would reveal the loss.
        """
        for place, after in enumerate(self.answers if len(self._names) == 2 else ()):
            reached = {index for index, _ in self._reached(place)}
            rows = [] if isinstance(after, Exception) else [row for row in after.failed if _is_unanswered(row)]
            for row in {row.target: row for row in rows if row.target not in reached}.values():
                trial = DialTrial(place, row.target, row.port)
                if (self._target(trial).dst, row.port) != self.master and self._target(trial).dst != self._names[place]:
                    yield trial

    def _neighbours(self) -> Iterator[DialTrial]:
        """Yield trials from each host to the next host that it reached, to try each host in both directions."""
        for place, name in enumerate(self._names):
            near = (*self._names[place + 1 :], *self._names[:place])
            reached = grouped((self.targets[name][index].dst, (index, ports)) for index, ports in self._reached(place))
            following = next((other for other in near if other in reached), name)
            yield from (DialTrial(place, index, ports[-1]) for index, ports in reached.get(following, ()))

    def _beside(self, ends: set[tuple[str, str]]) -> Iterator[DialTrial]:
        """Yield trials of other pairs that share a host with ``ends``, to find the host whose path is at fault."""
        sources, targets = {src for src, _ in ends}, {dst for _, dst in ends}
        for place, name in enumerate(self._names if ends else ()):
            for index, to in enumerate(self.targets[name] if isinstance(self.answers[place], Dialled) else ()):
                is_beside = name in sources or to.dst in targets or (to.dst, name) in ends
                if is_beside and to.dst != name and (name, to.dst) not in ends:
                    yield DialTrial(place, index, to.ports[-1])

    def _losses(
        self, trials: Iterable[DialTrial], seconds: float | None = None
    ) -> list[tuple[LostConnections, DialTrial, DialRow | None]]:
        chosen: dict[int, list[DialTrial]] = {}
        peers: Counter[str] = Counter()
        for trial in trials:
            dst = self._target(trial).dst
            mine = chosen.setdefault(trial.place, [])
            if peers[dst] < MOST_PEERS and len(mine) < MOST_TRIALS:
                mine.append(trial)
                peers[dst] += 1
        some = [mine for mine in chosen.values() if mine]
        results = fan_out(lambda mine: self._tried(mine, seconds or self.dial_s), some, window=Window())
        return [loss for each in results if not isinstance(each, Exception) for loss in each]

    def _tried(
        self, trials: list[DialTrial], seconds: float
    ) -> list[tuple[LostConnections, DialTrial, DialRow | None]]:
        losses = []
        first = self._dialled(trials, seconds)
        # a single lost connection may be chance, or a dead route of many
        unsure = [test.trial for test in first if (test.loss.lost, test.loss.resent, len(test.failed)) == (1, 0, 1)]
        second = {test.trial: test for test in (self._dialled(unsure, seconds) if unsure else ())}
        for test in first:
            tried = test.and_again(second[test.trial]) if test.trial in second else test
            loss, rows = tried.loss, [row for row in tried.failed if _is_unanswered(row)]
            # a dial that the listener answered late shows no loss by itself, but none by ports either
            late = loss.model_copy(update={"resent": loss.resent + len(tried.failed) - len(rows)})
            if loss.is_unusual and len(tried.failed) < loss.tried and all(map(_is_late, tried.failed)):
                losses.append((late, test.trial, rows[0]._replace(target=test.trial.index) if rows else None))
        return losses

    def _dialled(self, trials: list[DialTrial], seconds: float) -> list[_Tried]:
        wanted = [replace(self._target(trial), ports=(trial.port,)) for trial in trials]
        session, count = self.sessions[trials[0].place], DIALS if len(self._names) <= FEW_HOSTS else MANY_DIALS
        answer = self.dial(session, [target for target in wanted for _ in range(count)], seconds)
        resent = Counter(trip.target // count for trip in answer.trips if trip.again)
        results = []
        for at, (trial, to) in enumerate(zip(trials, wanted, strict=True)):
            failed = tuple(row for row in answer.failed if row.target // count == at)
            ends = {"src": session.node.name, "dst": to.dst, "address": to.address, "port": trial.port}
            lost = sum(map(_is_unanswered, failed))
            results.append(_Tried(trial, LostConnections(**ends, tried=count, lost=lost, resent=resent[at]), failed))
        return results


@dataclass(frozen=True)
class _Tried:
    trial: DialTrial
    loss: LostConnections
    failed: tuple[DialRow, ...]

    def and_again(self, other: _Tried) -> _Tried:
        counts = {name: getattr(self.loss, name) + getattr(other.loss, name) for name in ("tried", "lost", "resent")}
        return replace(self, loss=self.loss.model_copy(update=counts), failed=(*self.failed, *other.failed))


def _is_unanswered(row: DialRow) -> bool:
    return row.outcome == "timed-out" and row.error == "ETIMEDOUT"


def _is_late(row: DialRow) -> bool:
    """Return whether a connection attempt might have failed because of lost packets.

    If the last packet of the handshake is lost, the outcome of the connection attempt is "intercepted".
    """
    return row.outcome in ("timed-out", "intercepted")
