"""Tests run many times, beside busy loops: ``scripts/test --times 20 --busy PATH…``.

A test that fails once in twenty runs on a busy machine is a defect, of the product as often as of the test. Nothing
ends the runs; at their end each test that failed is printed with how often, and the file that holds its first failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

BUSY = 3
"""Loops beside the tests."""

LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1000000))"
"""It ends with whoever started it, however that ends."""


class Failure(NamedTuple):
    """A test that failed in one run, and what pytest says of it."""

    test: str
    text: str


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keeps so many processors busy."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def run_once(arguments: Sequence[str], folder: Path) -> list[Failure]:
    """Runs pytest, and returns what failed; a run that ended before its own end is a failure, too."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junit-xml={report}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    failures = list(_failures(ET.parse(report))) if report.exists() else []
    if done.returncode and not failures:
        failures.append(Failure(f"the run itself, which ended with {done.returncode}", done.stdout))
    return failures


def _failures(report: ET.ElementTree[ET.Element]) -> Iterator[Failure]:
    for case in report.iter("testcase"):
        for end in (*case.iterfind("failure"), *case.iterfind("error")):
            place = case.get("file") or case.get("classname")
            yield Failure(f"{place}::{case.get('name')}", end.text or end.get("message") or "")


def main(words: Sequence[str] | None = None) -> int:
    """Runs the tests as often as the words say, and returns 1 where one failed."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, required=True, metavar="N")
    parser.add_argument("--busy", action="store_true", help=f"beside {BUSY} busy loops")
    options, arguments = parser.parse_known_args(words)
    counts: Counter[str] = Counter()
    files: dict[str, Path] = {}
    folder = Path(tempfile.mkdtemp(prefix="nccl-doctor-times-"))
    with busy(BUSY if options.busy else 0):
        for number in range(1, options.times + 1):
            began = time.monotonic()
            failures = run_once(arguments, folder)
            for failure in failures:
                counts[failure.test] += 1
                if failure.test not in files:
                    files[failure.test] = folder / f"{len(files) + 1}.txt"
                    files[failure.test].write_text(f"{failure.test}, run {number}\n\n{failure.text}\n")
            said = ", ".join(failure.test for failure in failures) or "well"
            sys.stdout.write(f"{number} of {options.times}  {time.monotonic() - began:.0f} s  {said}\n")
            sys.stdout.flush()
    (folder / "report.xml").unlink(missing_ok=True)
    if not files:
        folder.rmdir()
    for test, count in counts.most_common():
        sys.stdout.write(f"failed {count} of {options.times} times: {test}\n  {files[test]}\n")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
