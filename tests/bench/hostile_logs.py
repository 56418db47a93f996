"""Logs made to cost time, and harmless ones of the same size: ``scripts/bench hostile_logs [COUNT]`` runs many.

A hostile log repeats what rules look for: samples, the words of patterns, what the first pass looks for, with and
without line ends, cut and shuffled. Prints how many times longer than harmless text the slowest and all together took.
"""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from nccl_doctor.logs import facts
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.rule import LogRule
from nccl_doctor.logs.signs import rules
from nccl_doctor.logs.verdict import report
from tests.logs.fact_lines import FACT_LINES

RULES: tuple[LogRule | facts.FactRule, ...] = (*rules(), *facts.RULES)
SIZE = 60_000
DOCTOR = str(Path(sys.executable).parent / "nccl-doctor")


def sample_of(rule: LogRule | facts.FactRule) -> str:
    """A line that fits."""
    if isinstance(rule, LogRule):
        return rule.sample
    return next(line for kind, line in FACT_LINES if kind == rule.kind and rule.compiled.search(line))


def longest_word(rule: LogRule | facts.FactRule) -> str:
    """The longest plain words in a pattern."""
    return max((found[0] for found in re.finditer(r"[A-Za-z0-9 ]*", rule.pattern)), key=len)


def units(rule: LogRule | facts.FactRule) -> tuple[str, str, str]:
    """What a hostile log repeats of one rule: its sample, the words of its pattern, its longest word."""
    return sample_of(rule), re.sub(r"[\\^$()|?*+{}]+", " ", rule.pattern), longest_word(rule)


def hostile(rng: random.Random, size: int) -> bytes:
    """One log of pieces of a few rules."""
    pieces = [piece for rule in rng.sample(RULES, rng.randint(1, 6)) for piece in units(rule)]
    glue = rng.choice(("", " ", "\n", "\r\n", "\t"))
    text = ""
    while len(text) < size:
        piece = rng.choice(pieces)
        text += piece[: rng.randint(1, len(piece))] * rng.randint(1, 40) + glue
    return text[:size].encode()


def harmless(size: int) -> bytes:
    """Lines of a training."""
    line = "[rank{0}]: step {1} loss 0.{1} lr 1.0e-04 grad_norm 0.993 tokens/s 9{0}17 mem 71.2GiB\n"
    return "".join(line.format(step % 8, step) for step in range(size // 60)).encode()[:size]


def seconds(data: bytes, tries: int = 1) -> float:
    """Processor time of the whole verdict, the best of some tries."""
    best = float("inf")
    for _ in range(tries):
        began = time.process_time()
        report(diagnose([LogSource("x.log", [data])]), 0.0).model_dump_json(by_alias=True)
        best = min(best, time.process_time() - began)
    return best


def start_seconds(tries: int = 3) -> float:
    """Processor time that the command takes for a log of one line, the best of some tries."""
    taken = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([DOCTOR, "logs", "-"], input=b"step 1\n", capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def main(count: int) -> None:
    """Prints the ratios, with what a start of the command takes for both and without."""
    rng, start = random.Random(11), start_seconds()
    seconds(harmless(1000))
    sizes = [rng.choice((20_000, 60_000, 200_000, 1_000_000)) for _ in range(count)]
    base = {size: seconds(harmless(size), 5) for size in set(sizes)}
    took = [(seconds(hostile(rng, size)), base[size]) for size in sizes]
    ratios = sorted(mine / theirs for mine, theirs in took)
    whole = sorted((start + mine) / (start + theirs) for mine, theirs in took)
    print(
        f"{count} logs: alone median {ratios[count // 2]:.0f}, most {ratios[-1]:.0f} times harmless text of that size;"
    )
    print(
        f"as the command, which starts in {start:.2f} s: median {whole[count // 2]:.2f}, most {whole[-1]:.2f} times; "
        f"{sum(mine for mine, _ in took):.1f} s in all"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
