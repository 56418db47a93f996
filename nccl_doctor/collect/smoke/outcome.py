"""From all that ranks and hosts told to what checks judge. Pure."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

from nccl_doctor.collect.answers import OwnFaultError, SmokeEnd, attempt
from nccl_doctor.collect.smoke.all_reduce_run import AllReduceRun, Rank
from nccl_doctor.collect.smoke.plan import Plan
from nccl_doctor.snapshot import RankResult, Smoke
from nccl_doctor.text.hostlist import grouped

if TYPE_CHECKING:
    from nccl_doctor.logs.facts import Facts

KEPT_LINES = 400
KEPT_CHATTER = 200
"""Of what a host's ranks print the snapshot keeps the last lines, and of NCCL's INFO lines fewer."""


def result(plan: Plan, all_reduce: AllReduceRun) -> Smoke:
    """The all-reduce as it went."""
    ranks: list[RankResult] = []
    facts: dict[str, Facts] = {}
    for name, own in grouped((rank.host, (number, rank)) for number, rank in enumerate(all_reduce.ranks)).items():
        lines = all_reduce.ends[name].output if name in all_reduce.ends else ()
        try:
            mine, told = attempt(partial(_of_host, own, lines, nccl=plan.backend == "nccl"))
        except OwnFaultError as error:
            all_reduce.ends[name] = SmokeEnd(broken=str(error))
            mine, told = [_rank(number, rank, None) for number, rank in own], None
        ranks += mine
        facts.update({} if told is None else {name: told})
    output = {name: end.output for name, end in all_reduce.ends.items()}
    world = range(len(ranks))
    rings = next((one.rings for one in facts.values() if one.rings), {})
    return Smoke(
        backend=plan.backend,
        reason=plan.reason,
        world_size=len(ranks),
        outcome=_outcome(all_reduce, ranks),
        deadline_s=plan.limits.deadline_s,
        ranks=tuple(ranks),
        sizes=tuple(all_reduce.sizes),
        wrong_groups=tuple(sorted(all_reduce.wrong_groups)),
        output={name: tuple(kept(lines)) for name, lines in output.items()},
        launchers=_launchers(plan, all_reduce, ranks),
        launcher_signals={
            name: end.signal for name, end in all_reduce.ends.items() if end.signal is not None and end.broken is None
        },
        rings=tuple(ring for _, ring in sorted(rings.items()) if all(rank in world for rank in ring)),
        trees={rank: text for one in facts.values() for rank, text in one.trees.items() if rank in world},
    )


def _of_host(
    ranks: list[tuple[int, Rank]], lines: tuple[str, ...], *, nccl: bool
) -> tuple[list[RankResult], Facts | None]:
    """One host's ranks by their numbers, and what NCCL says in their output."""
    from nccl_doctor.logs.facts import facts_of

    facts = facts_of(lines) if nccl else None
    return [_rank(number, rank, facts) for number, rank in ranks], facts


def kept(lines: Iterable[str]) -> list[str]:
    """The lines worth keeping, in their order."""
    said: deque[tuple[int, str]] = deque(maxlen=KEPT_LINES)
    chatter: deque[tuple[int, str]] = deque(maxlen=KEPT_CHATTER)
    for number, line in enumerate(lines):
        (chatter if "NCCL INFO" in line else said).append((number, line))
    return [line for _, line in sorted((*said, *chatter))]


def _rank(number: int, rank: Rank, facts: Facts | None) -> RankResult:
    code = rank.exit_code
    own = None
    if facts is not None and rank.pid is not None:
        own = next((p for p in facts.processes.values() if p.pid == str(rank.pid)), None)
    return RankResult(
        rank=number,
        host=rank.host,
        local_rank=rank.local_rank,
        stage=rank.stage,
        ok=rank.stage == "done",
        error=rank.error,
        pid=rank.pid,
        torch=rank.torch,
        nccl=rank.nccl,
        times=rank.times,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        state=rank.state,
        stack=rank.stack,
        own_s=None if rank.own_s is None else max(rank.own_s, 0.0),
        interfaces=tuple(f"{one.name}:{one.address}" for one in own.interfaces) if own else (),
        network=own.network if own else None,
        plugin=own.plugin if own else None,
        transports=dict(own.transports) if own else {},
    )


def _outcome(
    all_reduce: AllReduceRun, ranks: Iterable[RankResult]
) -> Literal["ok", "failed", "timeout", "wrong-result"]:
    if all(rank.stage == "done" for rank in all_reduce.ranks) and not any(
        end.broken for end in all_reduce.ends.values()
    ):
        return "ok"
    if any(rank.wrong for rank in all_reduce.ranks):
        return "wrong-result"
    if any(_died(rank) for rank in ranks):
        return "failed"
    hanging = all_reduce.timed_out or any(end.timed_out for end in all_reduce.ends.values())
    return "timeout" if hanging else "failed"


def _died(rank: RankResult) -> bool:
    """Whether it was dead before its deadline came; one that loses its peers to that may abort."""
    died = rank.state == "X" or rank.signal is not None or rank.exit_code is not None
    return died and not rank.ok and rank.error is None and rank.signal != signal.SIGABRT


def _launchers(plan: Plan, all_reduce: AllReduceRun, ranks: Iterable[RankResult]) -> dict[str, str]:
    """How each process that forks ranks ended, where that was not because of these or of us."""
    explained = {rank.host for rank in ranks if rank.error or rank.exit_code is not None or rank.signal is not None}
    found: dict[str, str] = {}
    for name in plan.counts:
        end = all_reduce.ends.get(name, SmokeEnd(broken="it gave no answer"))
        if end.broken is not None:
            found[name] = end.broken
        elif end.signal is not None:
            found[name] = f"the process that starts its ranks was killed by {signal_name(end.signal)}"
        elif end.exit not in (0, None) and name not in explained:
            found[name] = f"the process that starts its ranks ended with status {end.exit}"
    return found


def signal_name(number: int) -> str:
    """``SIGKILL``; ``signal 64`` where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
