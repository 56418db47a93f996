"""Parses a host's sample of a job's ranks. A malformed value becomes unknown, and the other values are kept."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nccl_doctor.collect.hang.reader import MOST_CALLS
from nccl_doctor.crew.answers import Contract, typed, typed_items
from nccl_doctor.logs import flight
from nccl_doctor.model.base import Count, Fact, Phased, Seconds, T, Unknown, unknown
from nccl_doctor.snapshot import hang
from nccl_doctor.snapshot.system import Xid

_TEXT = 200

_UNKNOWN = TypeAdapter(Unknown)
_STATE: TypeAdapter[Fact[hang.RankState | None]] = TypeAdapter(Fact[hang.RankState | None])
_STACK: TypeAdapter[Phased[tuple[hang.Thread, ...]]] = TypeAdapter(Phased[tuple[hang.Thread, ...]])
_FLOWS: TypeAdapter[Fact[dict[str, tuple[hang.Flow, ...]]]] = TypeAdapter(Fact[dict[str, tuple[hang.Flow, ...]]])
_KILLED: TypeAdapter[Fact[tuple[hang.OomKill, ...]]] = TypeAdapter(Fact[tuple[hang.OomKill, ...]])
_GPUS: TypeAdapter[Fact[tuple[hang.GpuWork, ...]]] = TypeAdapter(Fact[tuple[hang.GpuWork, ...]])
_XIDS: TypeAdapter[Fact[tuple[Xid, ...]]] = TypeAdapter(Fact[tuple[Xid, ...]])


class _Row(BaseModel):
    pid: Count
    state: Any
    stack: Any
    recorder: Any


class RanksAnswer(BaseModel):
    """A host's list of ranks before validation; any local user can add processes with any variables to the list."""

    model_config = ConfigDict(extra="allow")

    ranks: Annotated[list[Any], Field(max_length=4096)]
    launchers: Annotated[list[Any], Field(max_length=4096)]
    unnumbered: Any = ()
    starters: Any = ()
    exits: Any = ()


RANKS = Contract("ranks", TypeAdapter(RanksAnswer))
_ITEMS: dict[str, TypeAdapter[Any]] = {
    "ranks": TypeAdapter(hang.JobRank),
    "launchers": TypeAdapter(hang.Launcher),
    "unnumbered": TypeAdapter(hang.StoreClient),
    "starters": TypeAdapter(hang.Starter),
    "exits": TypeAdapter(hang.Exit),
}
_JOB = TypeAdapter(hang.JobRanks)


def job_ranks(answer: RanksAnswer) -> hang.JobRanks:
    """Parse a host's ranks one by one. Malformed ranks are left out and counted."""
    parts, misfits = answer.model_dump(), {}
    for name, kind in _ITEMS.items():
        if isinstance(parts[name], list):
            parts[name], left_out = typed_items(kind, parts[name])
            misfits.update({name: left_out} if left_out else {})
    return typed(_JOB, "ranks", {**parts, "misfits": misfits})


class LookAnswer(BaseModel):
    """A host's sample of a job's ranks, before validation.

    The parts that can be unknown are validated one by one in :func:`host_look`.
    """

    at_s: Seconds
    ranks: Annotated[tuple[_Row, ...], Field(max_length=4096)]
    launchers: tuple[hang.Launcher, ...]
    serves_ras: Any
    flows: Any
    killed: Any
    xids: Any
    gpus: Any = ()


class _Status(BaseModel):
    """A process group's entry in ``pg_status``.

    The sequence number of the last issued or last completed collective is -1 if there is no such collective.
    """

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


LOOK = Contract("look", TypeAdapter(LookAnswer))

ReadDump = Callable[[str, bytes], flight.Dump | None]  # reads a dump that a rank wrote; ValueError if it can't


def host_look(answer: LookAnswer, job: hang.JobRanks, read_dump: ReadDump) -> hang.HostLook:
    flows = _typed(_FLOWS, answer.flows)
    numbers = {rank.pid: rank.rank for rank in job.ranks}
    ranks = [
        hang.RankLook(
            pid=row.pid,
            state=_typed(_STATE, row.state),
            stack=_typed(_STACK, row.stack) if row.stack is not None else hang.RankLook.model_fields["stack"].default,
            recorder=recorded(row.recorder, numbers[row.pid], read_dump),
            flows=flows.get(str(row.pid), ()) if isinstance(flows, dict) else flows,
        )
        for row in answer.ranks
        if row.pid in numbers
    ]
    return hang.HostLook(
        at_s=answer.at_s,
        ranks=tuple(ranks),
        launchers=answer.launchers,
        serves_ras=answer.serves_ras is True,
        killed=_typed(_KILLED, answer.killed),
        xids=_typed(_XIDS, answer.xids),
        gpus=_typed(_GPUS, answer.gpus),
    )


def _typed(kind: TypeAdapter[T], value: object) -> T | Unknown:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        return unknown(f"the probe's answer does not fit: {error.errors()[0]['msg']}")


def recorded(answer: object, rank: int, read_dump: ReadDump) -> Fact[hang.Recorded | None]:
    """Parse a rank's flight recorder, or return None if there is none.

    The recorder is given as {"live": document} or {"dump": {"name", "age_s", "data"}}.
    """
    if answer is None:
        return None
    if isinstance(answer, dict) and "$unknown" in answer:
        return _typed(_UNKNOWN, answer)
    try:
        assert isinstance(answer, dict)
        if isinstance(live := answer.get("live"), dict):
            status = TypeAdapter(dict[str, _Status]).validate_python(live.get("pg_status") or {})
            return _recorded(flight.read(f"rank_{rank}", json.dumps(live).encode()), status, None)
        dump = answer["dump"]
        return _recorded(read_dump(f"rank_{rank}", base64.b64decode(dump["data"])), {}, float(dump["age_s"]))
    except ValidationError as error:
        return unknown(f"the flight recorder is not understood: {error.errors()[0]['msg']}")
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:_TEXT]
        return unknown(f"the flight recorder is not understood: {words or type(error).__name__}")


def _recorded(dump: flight.Dump | None, status: dict[str, _Status], age_s: float | None) -> hang.Recorded:
    if dump is None:
        raise ValueError("it is not a dump")
    cut = [(entry, {"sizes": entry.sizes[:_TEXT], "dtypes": entry.dtypes[:_TEXT]}) for entry in dump.records]
    calls = [
        hang.Call(group=entry.group, seq=entry.seq, name=entry.name, place=entry.place, done=entry.ended, **texts)
        for entry, texts in cut
    ]
    issued = {group[:_TEXT]: max(entry.last_enqueued_collective, 0) for group, entry in status.items()}
    for call in calls:
        issued[call.group] = max(call.seq, issued.get(call.group, 0))
    return hang.Recorded(
        live=age_s is None,
        age_s=age_s or 0,
        issued=issued,
        ended={group[:_TEXT]: max(entry.last_completed_collective, 0) for group, entry in status.items()},
        calls=tuple(calls[-MOST_CALLS:]),
    )
