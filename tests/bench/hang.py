"""Each fault of a real job, looked at again and again: ``scripts/bench hang [--times 10] [FAULT…]``.

Prints a point a look, and a line a fault: how often it was seen right, the seconds that it took, and whether the job was afterwards as
before: the same processes, in no other state, and further steps made.
"""

from __future__ import annotations

import argparse
import sys

from tests.hang.faults import FAULTS, Expected, Seen, looked
from tests.hang.running import Training
from tests.lab.cluster import Lab

LIMIT_S = 30.0
INTERVAL_S = "5"
"""The command's own default."""


def main() -> None:
    """Ends with 1 where one was not seen right, not in time, or left something behind."""
    parser = argparse.ArgumentParser(prog="scripts/bench hang")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("faults", nargs="*", metavar="FAULT", choices=[*FAULTS, []], default=[])
    given = parser.parse_args()
    bad = 0
    with Lab.up(4) as lab:
        job = Training(lab)
        for name in given.faults or FAULTS:
            expected = FAULTS[name]
            seen, kept = [], True
            for _ in range(given.times):
                before = job.pids()
                seen.append(looked(job, name, "--interval", INTERVAL_S))
                print("." if seen[-1].is_right(expected) else "!", end="", flush=True)
                if name == "kill":
                    job.end()
                    job = Training(lab)
                else:
                    kept = kept and (job.pids(), job.states() & set("Tt")) == (before, set())
            bad += not _told(name, expected, seen, kept)
        job.end()
    sys.exit(bool(bad))


def _told(name: str, expected: Expected, seen: list[Seen], kept: bool) -> bool:
    right = sum(one.is_right(expected) for one in seen)
    slowest = max(one.seconds for one in seen)
    after = "" if name == "kill" else ", the job as before" if kept else ", THE JOB IS NOT AS BEFORE"
    print(f" {name:9} right {right} of {len(seen)}, at most {slowest:.1f} s (limit {LIMIT_S:.0f}){after}", flush=True)
    for one in seen:
        if not one.is_right(expected):
            print(f"    {one.code} {one.told['verdict']} {one.names} {one.behind}: {one.told['message']}", flush=True)
    return right == len(seen) and slowest < LIMIT_S and kept


if __name__ == "__main__":
    main()
