"""What a host answered to a look at a job's ranks, typed: what does not fit is unknown of that host.

The process may take little memory and time, and costs nothing until something is to be read. Where it ends, what it was
reading is not known, and the next document gets a new one. It holds nothing but that document, and ends when its
standard input does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from nccl_doctor.logs import flight
from nccl_doctor.nccl.ras_answer import MalformedAnswerError
from nccl_doctor.snapshot import Fact, Phased, Unknown, unknown
from nccl_doctor.snapshot.hang import HostLook, OomKill
from nccl_doctor.snapshot.hardware import Xid
from nccl_doctor.snapshot.job_ranks import JobRanks, Launcher
from nccl_doctor.snapshot.rank_look import Call, Flow, RankLook, RankState, Recorded, Thread
from nccl_doctor.snapshot.values import Count, Seconds
from nccl_doctor.text.json_bounds import CrowdedError

MEMORY = 768 << 20
"""Bytes of address space: the readers' own bounds, and an interpreter with pydantic."""
CPU_S = 10
"""Seconds of a processor for one document, and for all of one host; torch's largest take one."""
MOST_CALLS = 64
"""Of a dump that are told: where ranks part is among the last that they issued."""
_MOST_GROUPS = 1024
_MOST_TEXT = 200
_LONGEST_ANSWER = 4 << 20
_BLOCK = 1 << 16

_ENTRY = "import json, sys; sys.path = json.loads(sys.argv[1]); from nccl_doctor.collect.reader import serve; serve()"

_LATE = "no time was left to read it"
_ENDED = f"reading it takes more than {MEMORY >> 20} MiB of memory, or {CPU_S} s"

Kind = Literal["dump", "ras"]


class UnreadableError(ValueError):
    """What a host wrote could not be read; the message is a phrase."""


class Reader:
    """Starts the process when it is needed first; several threads may ask, and wait for one another.

    Args:
        until: when the run ends; nothing is waited for any longer.
    """

    def __init__(self, until: float) -> None:
        self._until = until
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._spent: Counter[str] = Counter()
        self._closed = False

    def dump(self, host: str, name: str, data: bytes) -> flight.Dump | None:
        """A dump's last calls, and the last of each group; None where it is none.

        Raises:
            UnreadableError: it asks for too much, or the time is over.
        """
        told = self._ask(host, "dump", name, data)
        if told is None:
            return None
        return flight.Dump(told["rank"], tuple(flight.Record(**record) for record in told["records"]), {})

    def look_through(self, host: str, answer: str) -> None:
        """Parses an answer of RAS, for what comes of it: who parses it again stays within bounds.

        Raises:
            UnreadableError: it asks for too much, or the time is over.
        """
        self._ask(host, "ras", "", answer.encode(errors="replace"))

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        if self._turn.acquire(timeout=1.0):  # else a thread is about to learn of it, and tidies up
            self._end()
            self._turn.release()

    def _ask(self, host: str, kind: Kind, name: str, data: bytes) -> Any:  # noqa: ANN401 - JSON
        if self._spent[host] >= CPU_S:
            raise UnreadableError(f"the host's other ones took {CPU_S} s to read")
        if not self._turn.acquire(timeout=max(0.0, self._until - time.monotonic())):
            raise UnreadableError(_LATE)
        try:
            answer = self._exchange(kind, name, data)
            self._spent[host] += answer["seconds"]
        except (OSError, EOFError) as error:
            self._spent[host] += CPU_S
            self._end()
            raise UnreadableError(str(error) if isinstance(error, TimeoutError) else _ENDED) from error
        except BaseException:
            self._end()
            raise
        finally:
            self._turn.release()
        if "refused" in answer:
            raise UnreadableError(answer["refused"])
        return answer["read"]

    def _exchange(self, kind: Kind, name: str, data: bytes) -> dict[str, Any]:
        """Sends a document and returns the answer to it."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        rest = memoryview(json.dumps({"kind": kind, "name": name, "size": len(data)}).encode() + b"\n" + data)
        answer = bytearray()
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            waiting.register(process.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                ready = waiting.select(max(0.0, self._until - time.monotonic()))
                if not ready:
                    raise TimeoutError(_LATE)
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        rest = rest[os.write(key.fd, rest[:_BLOCK]) :]
                        if not rest:
                            waiting.unregister(process.stdin)
                    else:
                        block = os.read(key.fd, _BLOCK)
                        answer += block
                        if not block or len(answer) > _LONGEST_ANSWER:
                            raise EOFError
        told: dict[str, Any] = json.loads(answer)
        return told

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise EOFError
        if self._process is None:
            places = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _ENTRY, json.dumps(places)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is ours to answer
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
            process.wait()


def serve() -> None:
    """Answers documents on standard input until it ends: in a process of its own alone, which it binds."""
    from resource import RLIMIT_AS, RLIMIT_CORE

    _bind(RLIMIT_AS, MEMORY)
    _bind(RLIMIT_CORE, 0)
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := source.readline(1 << 16):
        told = json.loads(header)
        answers.write(json.dumps(_answer(told["kind"], told["name"], source, told["size"])).encode() + b"\n")
        answers.flush()


def _bind(limit: int, most: int) -> None:
    import resource

    hard = resource.getrlimit(limit)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS knows the limit, and refuses to set it
        resource.setrlimit(limit, (soft, hard))


def _answer(kind: Kind, name: str, source: BinaryIO, size: int) -> dict[str, Any]:
    from resource import RLIMIT_CPU

    began = time.process_time()
    _bind(RLIMIT_CPU, int(began) + 1 + CPU_S)
    readers: dict[Kind, Callable[[str, bytes], Any]] = {"dump": _read_dump, "ras": _read_ras}
    try:
        told = {"read": readers[kind](name, source.read(size))}
    except CrowdedError as error:
        told = {"refused": str(error)}
    except MemoryError:
        told = {"refused": _ENDED}
    return told | {"seconds": time.process_time() - began}


def _read_dump(name: str, data: bytes) -> dict[str, Any] | None:
    dump = flight.read(name, data)
    if dump is None:
        return None
    last: dict[str, flight.Record] = {}
    for record in dump.records[:-MOST_CALLS]:
        if record.group in last or len(last) < _MOST_GROUPS:
            last[record.group] = max(last.get(record.group, record), record, key=lambda one: one.seq)
    records = [*last.values(), *dump.records[-MOST_CALLS:]]
    return {"rank": dump.rank, "records": [{**asdict(one), "sizes": one.sizes[:_MOST_TEXT]} for one in records]}


def _read_ras(_name: str, data: bytes) -> None:
    from nccl_doctor.nccl import ras

    with contextlib.suppress(MalformedAnswerError):  # who reads it again meets the same
        ras.parse(data.decode())


_TEXT = 200

_UNKNOWN = TypeAdapter(Unknown)
_STATE: TypeAdapter[Fact[RankState | None]] = TypeAdapter(Fact[RankState | None])
_STACK: TypeAdapter[Phased[tuple[Thread, ...]]] = TypeAdapter(Phased[tuple[Thread, ...]])
_FLOWS: TypeAdapter[Fact[dict[str, tuple[Flow, ...]]]] = TypeAdapter(Fact[dict[str, tuple[Flow, ...]]])
_KILLED: TypeAdapter[Fact[tuple[OomKill, ...]]] = TypeAdapter(Fact[tuple[OomKill, ...]])
_XIDS: TypeAdapter[Fact[tuple[Xid, ...]]] = TypeAdapter(Fact[tuple[Xid, ...]])


class _Row(BaseModel):
    pid: Count
    state: Any
    stack: Any
    recorder: Any


class LookAnswer(BaseModel):
    """A look as it comes; the parts that may be unknown are typed one by one, in :func:`host_look`."""

    at_s: Seconds
    ranks: Annotated[tuple[_Row, ...], Field(max_length=4096)]
    launchers: tuple[Launcher, ...]
    serves_ras: Any
    flows: Any
    killed: Any
    xids: Any


class _Status(BaseModel):
    """A group's entry of ``pg_status``: -1 where nothing was issued or ended yet."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


LOOK = TypeAdapter(LookAnswer)

ReadDump = Callable[[str, bytes], flight.Dump | None]
"""Reads a dump that a rank wrote; a ValueError says why it can't."""


def host_look(told: LookAnswer, job: JobRanks, read_dump: ReadDump) -> HostLook:
    """One host's look."""
    flows = _typed(_FLOWS, told.flows)
    numbers = {rank.pid: rank.rank for rank in job.ranks}
    return HostLook(
        at_s=told.at_s,
        ranks=tuple(_rank(row, numbers[row.pid], flows, read_dump) for row in told.ranks if row.pid in numbers),
        launchers=told.launchers,
        serves_ras=told.serves_ras is True,
        killed=_typed(_KILLED, told.killed),
        xids=_typed(_XIDS, told.xids),
    )


def _rank(row: _Row, rank: int, flows: Any, read_dump: ReadDump) -> RankLook:  # noqa: ANN401 - a fact or a dict, see _FLOWS
    state = _typed(_STATE, row.state)
    return RankLook(
        pid=row.pid,
        state=state,
        stack=_typed(_STACK, row.stack) if row.stack is not None else RankLook.model_fields["stack"].default,
        recorder=recorded(row.recorder, rank, read_dump),
        flows=flows.get(str(row.pid), ()) if isinstance(flows, dict) else flows,
    )


def _typed(kind: TypeAdapter[Any], value: object) -> Any:  # noqa: ANN401 - what the adapter is of
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        return unknown(f"the probe's answer does not fit: {error.errors()[0]['msg']}")


def recorded(told: object, rank: int, read_dump: ReadDump) -> Any:  # noqa: ANN401 - Fact[Recorded | None]
    """A rank's recorder out of ``{"live": document}`` or ``{"dump": {"name", "age_s", "data"}}``; None for none."""
    if told is None:
        return None
    if isinstance(told, dict) and "$unknown" in told:
        return _typed(_UNKNOWN, told)
    try:
        if isinstance(told, dict) and isinstance(told.get("live"), dict):
            return _live(told["live"], rank)
        assert isinstance(told, dict)
        dump = told["dump"]
        return _recorded(read_dump(f"rank_{rank}", base64.b64decode(dump["data"])), {}, float(dump["age_s"]))
    except ValidationError as error:
        return unknown(f"the flight recorder is not understood: {error.errors()[0]['msg']}")
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:_TEXT]
        return unknown(f"the flight recorder is not understood: {words or type(error).__name__}")


def _live(document: dict[str, Any], rank: int) -> Recorded:
    status = TypeAdapter(dict[str, _Status]).validate_python(document.get("pg_status") or {})
    dump = flight.read(f"rank_{rank}", json.dumps(document).encode())
    return _recorded(dump, status, None)


def _recorded(dump: flight.Dump | None, status: dict[str, _Status], age_s: float | None) -> Recorded:
    if dump is None:
        raise ValueError("it is no dump")
    calls = [
        Call(
            group=record.group,
            seq=record.seq,
            name=record.name,
            sizes=record.sizes[:_TEXT],
            dtypes=record.dtypes[:_TEXT],
            place=record.place,
            done=record.ended,
        )
        for record in dump.records
    ]
    issued = {group[:_TEXT]: max(one.last_enqueued_collective, 0) for group, one in status.items()}
    for call in calls:
        issued[call.group] = max(call.seq, issued.get(call.group, 0))
    return Recorded(
        live=age_s is None,
        age_s=age_s or 0,
        issued=issued,
        ended={group[:_TEXT]: max(one.last_completed_collective, 0) for group, one in status.items()},
        calls=tuple(calls[-MOST_CALLS:]),
    )
