"""Dumps of flight recorders and answers of RAS that liars wrote: read by ``logs`` and as ``hang`` reads them, and bounded.

``python -m tests.hostile.dumps --runs 1000 --seed 1`` prints what came of them; the process binds its own memory.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import pickle
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nccl_doctor.collect.hang.probe_answers import recorded
from nccl_doctor.collect.hang.reader import DocumentReader, UnreadableError
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl import ras
from nccl_doctor.nccl.ras import MalformedAnswerError
from nccl_doctor.text.bounds import CrowdedError

ADDRESS_SPACE = 1 << 30
"""Bytes that the whole run may take: what is beyond ends it."""
MEMORY_MIB = 700
"""A document of 16 MiB, twice while it comes, what is read of it, and all modules of the command."""
CPU_S = 20.0
"""Seconds of a processor for one document, on a slow machine: what fell took minutes."""
LARGE = 16 << 20
ANSWERS = sorted((Path(__file__).parents[1] / "nccl" / "ras").rglob("*.*"))
TEXTS = ("", "\0", "\x1b]0;x\x07", "\u202e", "a" * 70_000, "1 " * 40_000, "\U0001f600" * 9_000, "-1", "NaN", "9" * 5000)
NUMBERS = (-1, 0, 1 << 31, 1 << 63, (1 << 127) - 1, 10**400, 1.5, float("nan"), float("inf"), -0.0)
OTHERS: tuple[Any, ...] = (None, True, {}, [], (), [[]], {"": []}, [[[[[[1]]]]]], [None] * 200, {"a": {"b": {"c": 1}}})


def call(seq: int, group: str = "0", **more: Any) -> dict[str, Any]:
    """One entry, as torch 2.13 writes it."""
    lines = [{"name": "step", "filename": "/home/u/train.py", "line": 19}]
    return {
        "frames": lines,
        "record_id": seq,
        "pg_id": 0,
        "process_group": (group, "default_pg"),
        "collective_seq_id": seq,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
    } | more


def dump(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A recorder's whole document."""
    groups = {"": {"name": "", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": list(calls)} | more


def doubled(times: int, place: str = "input_sizes") -> bytes:
    """A list that holds one list twice, which holds one twice, and so on, in one entry's place."""
    shared: Any = [1]
    for _ in range(times):
        shared = [shared, shared]
    if place == "ranks":
        return pickle.dumps(dump(call(1), pg_config={"0": {"ranks": shared}}))
    return pickle.dumps(dump(call(1, **{place: shared})))


def _doubled(chance: random.Random) -> bytes:
    return doubled(
        chance.choice((2, 5, 6, 20, 60, 200)),
        chance.choice(("ranks", "frames", "input_sizes", "input_dtypes", "state")),
    )


def _shared(chance: random.Random) -> bytes:
    """Few values, each of them in thousands of places."""
    count = chance.choice((1000, 30_000, 120_000))
    long = "x" * chance.choice((1, 119, 4000))
    parts: dict[str, Any] = {
        "input_sizes": [[10**11 + number for number in range(64)]] * 64,
        "input_dtypes": [f"{long}{number}" for number in range(64)],
        "frames": [{"filename": f"/{long}", "line": 1}] * 64,
    }
    wide: dict[str, Any] = chance.choice([{}, parts, {key: parts[key] for key in chance.sample(sorted(parts), 1)}])
    if chance.random() < 0.5:
        return pickle.dumps(dump(*[call(1, **wide)] * count))
    ranks = " ".join(map(str, range(chance.choice((10, 70_000)))))
    return pickle.dumps(dump(call(1), pg_config={str(number): {"ranks": ranks} for number in range(min(count, 3000))}))


def _repeated(chance: random.Random) -> bytes:
    """One or two opcodes again and again."""
    one = (b"}", b"]", b")", b"(", b"N", b"K\x01", b"J\0\0\0\x7f", b"\x8a\x02\0\1", b"]\x94", b"}q\0", b"\x8c\2ab", b"h\0", b"]a",
           b"(e", b"}K\0K\0s", b"]N\x85", b"\x85", b"\x86", b"(t", b"0", b"2", b"X\4\0\0\0\xf0\x9f\x98\x80")  # fmt: skip
    unit = b"".join(chance.choice(one) for _ in range(chance.randint(1, 3)))
    start = chance.choice((b"\x80\x04", b"\x80\x02]q\0", b"\x80\x02}q\0(", b"\x80\x04X\7\0\0\0entriesq\0"))
    return start + unit * (chance.choice((10, 10_000, LARGE)) // len(unit)) + chance.choice((b"", b".", b"e.", b"u."))


def _nested(chance: random.Random) -> bytes:
    depth = chance.choice((5, 9, 200, 100_000))
    if chance.random() < 0.5:
        return b"\x80\x02" + b"](" * depth + b"e" * depth + b"."
    return b'{"pg_config": {}, "entries": [' + b"[" * depth + b"]" * depth + b"]}"


def _long(chance: random.Random) -> bytes:
    """Long texts, with a character that makes each of the others take four bytes."""
    text = chance.choice((b"a", b"1 ", b"[0],")) * chance.choice((100, 100_000, LARGE // 8)) + chance.choice(
        (b"", "😀".encode())
    )
    if chance.random() < 0.5:
        return b"\x80\x02}X\7\0\0\0entriesX" + struct.pack("<I", chance.choice((len(text), 1 << 31))) + text + b"s."
    return (
        b'{"pg_config": {"0": {"ranks": "'
        + text
        + chance.choice((b"", b"\\ud83d\\ude00"))
        + b'"}}, "rank": 0, "entries": []}'
    )


def _crowd(chance: random.Random) -> bytes:
    """JSON of many small values."""
    unit = chance.choice(
        (b"{}", b"[]", b"0", b'""', b"1e1", b'{"a":1}', b'"\\""', b'{"collective_seq_id":1}', b"null", b"[[0]]")
    )
    count = chance.choice((10, 100_000, LARGE // 8))
    place = chance.choice(
        (b'{"pg_config": {}, "entries": [', b'{"entries": [{"collective_seq_id": 1, "input_sizes": [')
    )
    return place + b",".join([unit] * (count // len(unit) + 1)) + chance.choice((b"", b"]}", b"]}]}"))


def _tree(chance: random.Random) -> dict[str, Any]:
    """A document of which some places hold what does not belong there."""
    tree = dump(*(call(seq) for seq in range(1, chance.choice((2, 40)))), rank=0)
    for _ in range(chance.randint(0, 5)):
        owner: Any = tree
        while True:
            keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(owner[key], (dict, list)) and owner[key] and chance.random() < 0.8:
                owner = owner[key]
                continue
            if isinstance(owner, (dict, list)):
                owner[key] = copy.deepcopy(chance.choice((*TEXTS, *NUMBERS, *OTHERS)))
            break
    return tree


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, cut, or written twice."""
    for _ in range(chance.choice((0, 0, 1, 3, 30))):
        place = chance.randrange(len(data) + 1)
        end = min(len(data), place + chance.choice((1, 1, 4, 200)))
        new = chance.choice((b"", bytes([chance.randrange(256)]), data[place:end] * 2, data[:place]))
        data = (data[:place] + new + data[end:])[:LARGE] or b"\x80"
    return data


def _pickled(chance: random.Random) -> bytes:
    return _damaged(pickle.dumps(_tree(chance), protocol=chance.randint(2, 5)), chance)


def _written(chance: random.Random) -> bytes:
    return _damaged(json.dumps(_tree(chance)).encode(errors="replace"), chance)


def _answer(chance: random.Random) -> bytes:
    """What RAS might say, many times over."""
    lines = chance.choice(ANSWERS).read_bytes().split(b"\n")
    if chance.random() < 0.5:
        chance.shuffle(lines)
    picked = b"\n".join(chance.sample(lines, min(len(lines), chance.randint(1, 40))))
    times = chance.choice((1, 50, 20_000))
    return _damaged(b"\n".join([*lines, *[picked] * times])[: LARGE // 2], chance)


def _ranks(chance: random.Random) -> bytes:
    """An answer in JSON with many ranks, each with counts of its own, or dead."""
    count = chance.choice((3, 3000, 60_000))

    def rank(number: int) -> str:
        counts = ",".join(
            f'"{chance.choice(("All", f"x{number}-"))}{topic}":{number}' for topic in range(chance.choice((0, 1, 9)))
        )
        dead = chance.choice(("true", "false", "0", "[]") if chance.random() < 0.001 else ("true", "false"))
        return f'{{"rank":{number},"host":"10.0.0.{number % 9}","pid":{number},"status":{{"considered_dead":{dead}}},"collective_counts":{{{counts}}}}}'

    ranks = ",".join(rank(number) for number in range(count))
    places = chance.sample(("ranks", "missing_ranks"), 2)
    text = f'{{"nccl_version":"2.28.9","communicators_count": 1,"communicators":[{{"hash":"1","size":2,"{places[0]}":[{ranks}],"{places[1]}":[]}}]}}'
    return _damaged(text.encode(), chance)


DUMPS: tuple[Callable[[random.Random], bytes], ...] = (_pickled, _written, _pickled, _written, _doubled, _shared, _repeated, _nested, _long, _crowd)  # fmt: skip
REPORTS: tuple[Callable[[random.Random], bytes], ...] = (_answer, _answer, _ranks, _crowd, _long)


@dataclass
class Result:
    """What came of many runs; ``faults`` is empty where all is well."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    peak_mib: float = 0.0


def run(runs: int, seed: int) -> Result:
    """Makes and reads so many documents; the same seed gives the same ones."""
    chance = random.Random(seed)
    result = Result()
    reader = DocumentReader(time.monotonic() + 3600 * 10)
    for number in range(runs):
        of_ras = chance.random() < 0.25
        make = chance.choice(REPORTS if of_ras else DUMPS)
        data = make(chance)
        began = time.process_time()
        try:
            logged = _logged(data)
            asked = (_asked if of_ras else _dumped)(data, reader, f"node{number}")
        except Exception as error:  # noqa: BLE001 - each is a fault to be told, and the others go on
            result.faults.append(
                f"run {number}, {make.__name__}, {len(data)} bytes: {type(error).__name__}: {str(error)[:300]}"
            )
            continue
        seconds = time.process_time() - began
        result.longest_s = max(result.longest_s, seconds)
        if seconds > CPU_S:
            result.faults.append(f"run {number}, {make.__name__}, {len(data)} bytes: {seconds:.0f} s")
        result.outcomes[f"{'RAS' if of_ras else 'dump'}: logs {logged}, hang {asked}"] += 1
    reader.close()
    # not ru_maxrss of ourselves, which has that of who started us (getrusage(2))
    own = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    readers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    result.peak_mib = max(own, readers) / 1024
    return result


def _logged(data: bytes) -> str:
    """As the files of two ranks."""
    blocks = [data[start : start + (1 << 18)] for start in range(0, len(data), 1 << 18)]
    whole = dump(call(1, retired=True), rank=7)
    verdict = diagnose([LogSource("d/trace_rank_0", iter(blocks)), LogSource("d/trace_rank_7", [pickle.dumps(whole)])])
    text = report(verdict, 0.0).model_dump_json(by_alias=True)
    assert len(text) < 4 << 20, f"a report of {len(text)} bytes"
    return "refused" if verdict.log.refused else "read" if len(verdict.log.dumps) > 1 else "text"


def _dumped(data: bytes, reader: DocumentReader, host: str) -> str:
    told = {"dump": {"name": "x", "age_s": 1.0, "data": base64.b64encode(data).decode()}}
    found = recorded(told, 0, partial(reader.dump, host))
    return "unknown" if isinstance(found, Unknown) else "read"


def _asked(data: bytes, reader: DocumentReader, host: str) -> str:
    text = data.decode(errors="replace")
    try:
        reader.look_through(host, text)
    except UnreadableError:
        return "unknown"
    try:
        ras.parse(text)
    except (CrowdedError, MalformedAnswerError):
        return "malformed"
    return "read"


def main() -> int:
    """Runs them, prints the figures; status 1 where a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    result = run(given.runs, given.seed)
    if result.peak_mib > MEMORY_MIB:
        result.faults.append(f"{result.peak_mib:.0f} MiB of memory")
    sys.stdout.write(
        f"{given.runs} documents: {dict(sorted(result.outcomes.items()))}, at most {result.longest_s:.1f} s of a processor "
        f"and {result.peak_mib:.0f} MiB, {len(result.faults)} faults\n"
    )
    sys.stdout.writelines(f"{fault[:1500]}\n" for fault in result.faults)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
