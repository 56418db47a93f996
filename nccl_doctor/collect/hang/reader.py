"""Parses untrusted documents from hosts (flight recorder dumps and RAS answers) in a separate process.

The parser process has limits on memory and CPU time and is started only when there is something to parse. If the parser
process dies, the current document counts as unknown, and a new process parses the next document. The parser process
receives only the documents to parse and exits when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Literal

from nccl_doctor.logs import flight
from nccl_doctor.nccl.ras import MalformedAnswerError
from nccl_doctor.text.bounds import CrowdedError

MEMORY = 768 << 20  # bytes of address space: the readers' own limits, and an interpreter with pydantic
CPU_S = 10  # CPU seconds for one document, and for all documents of one host; torch's largest take one
MOST_CALLS = 64  # calls of a dump that are reported: the ranks diverge among the last calls issued
_MOST_GROUPS = 1024
_MOST_TEXT = 200
_LONGEST_ANSWER = 4 << 20
_BLOCK = 1 << 16

_ENTRY = (
    "import json, sys; sys.path = json.loads(sys.argv[1]); from nccl_doctor.collect.hang.reader import serve; serve()"
)

_LATE = "no time was left to read it"
_ENDED = f"reading it takes more than {MEMORY >> 20} MiB of memory, or {CPU_S} s"

DocumentKind = Literal["dump", "ras"]


class UnreadableError(ValueError):
    """Error raised if a host's document could not be parsed."""


class DocumentReader:
    """Controller of the parser process, which is started on first use and serves one thread at a time."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._spent: Counter[str] = Counter()
        self._closed = False

    def dump(self, host: str, name: str, data: bytes) -> flight.Dump | None:
        """Return the last calls in a dump, overall and by process group, or None if the data is not a dump.

        Raise UnreadableError if the dump can't be parsed within the limits on memory and time.
        """
        answer = self._ask(host, "dump", name, data)
        if answer is None:
            return None
        return flight.Dump(answer["rank"], tuple(flight.RecordedCall(**record) for record in answer["records"]), {})

    def look_through(self, host: str, answer: str) -> None:
        """Check an answer from RAS; raise UnreadableError if parsing it would exceed the limits."""
        self._ask(host, "ras", "", answer.encode(errors="replace"))

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()
        if self._turn.acquire(timeout=1.0):  # otherwise another thread is about to notice, and cleans up
            self._end()
            self._turn.release()

    def _ask(self, host: str, kind: DocumentKind, name: str, data: bytes) -> dict[str, Any] | None:
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
        read: dict[str, Any] | None = answer["read"]
        return read

    def _exchange(self, kind: DocumentKind, name: str, data: bytes) -> dict[str, Any]:
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
        result: dict[str, Any] = json.loads(answer)
        return result

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
                start_new_session=True,  # Ctrl-C is handled by this process
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
    """Parse documents from standard input until end of file, and write the results to standard output.

    Call this function only in a separate process, since it limits the memory and CPU time of the process.
    """
    from resource import RLIMIT_AS, RLIMIT_CORE

    _bind(RLIMIT_AS, MEMORY)
    _bind(RLIMIT_CORE, 0)
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := source.readline(1 << 16):
        request = json.loads(header)
        answers.write(json.dumps(_answer(request["kind"], request["name"], source, request["size"])).encode() + b"\n")
        answers.flush()


def _bind(limit: int, most: int) -> None:
    import resource

    hard = resource.getrlimit(limit)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has this limit, but refuses to set it
        resource.setrlimit(limit, (soft, hard))


def _answer(kind: DocumentKind, name: str, source: BinaryIO, size: int) -> dict[str, Any]:
    from resource import RLIMIT_CPU

    began = time.process_time()
    _bind(RLIMIT_CPU, int(began) + 1 + CPU_S)
    result: dict[str, Any]
    try:
        result = {"read": (_read_dump if kind == "dump" else _read_ras)(name, source.read(size))}
    except CrowdedError as error:
        result = {"refused": str(error)}
    except MemoryError:
        result = {"refused": _ENDED}
    return result | {"seconds": time.process_time() - began}


def _read_dump(name: str, data: bytes) -> dict[str, Any] | None:
    dump = flight.read(name, data)
    if dump is None:
        return None
    last: dict[str, flight.RecordedCall] = {}
    for record in dump.records[:-MOST_CALLS]:
        if record.group in last or len(last) < _MOST_GROUPS:
            last[record.group] = max(last.get(record.group, record), record, key=lambda call: call.seq)
    records = [*last.values(), *dump.records[-MOST_CALLS:]]
    return {"rank": dump.rank, "records": [{**asdict(call), "sizes": call.sizes[:_MOST_TEXT]} for call in records]}


def _read_ras(_name: str, data: bytes) -> None:
    from nccl_doctor.nccl import ras

    with contextlib.suppress(MalformedAnswerError):  # another reader will fail in the same way
        ras.parse(data.decode())
