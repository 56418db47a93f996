"""Reads the results of NCCL's own diagnostics (NCCL 2.31 and later) from the all-reduce's output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.smoke import Smoke

if TYPE_CHECKING:
    from nccl_doctor.logs.diagnose import LogVerdict

_TOOK = re.compile(r"NCCL DIAG (?:NCCL|RAS) diagnostics completed in (\d{1,9}(?:\.\d{1,3})?) ms")


def _report_of(smoke: Smoke) -> dict[str, list[str]]:
    """Return, for each host, the lines that NCCL's own diagnostics printed."""
    lines = {host: [line for line in output if "NCCL DIAG " in line] for host, output in smoke.output.items()}
    return {host: diag_lines for host, diag_lines in lines.items() if diag_lines}


def diagnostics_words(smoke: Smoke) -> str | None:
    """Return a summary such as ``own diagnostics in 3.6 ms: nothing found``, or None if NCCL ran no diagnostics."""
    from nccl_doctor.logs.verdict import summed

    report = _report_of(smoke)
    took = [float(match[1]) for lines in report.values() for line in lines if (match := _TOOK.search(line))]
    if not took:
        return None
    verdict = _read(report)
    left_out = [row.text for row in summed(verdict) if row.outcome == "unknown"]
    names = "; ".join(dict.fromkeys(cause.name for cause in verdict.causes)) or "nothing found"
    return ", ".join((f"own diagnostics in {sum(took):.3g} ms: {names}", *left_out))


def findings_of_nccl(smoke: Smoke) -> Iterator[tuple[str, Finding]]:
    """Yield the name and finding of each fault that NCCL's own diagnostics reported.

    The findings are warnings, because the ranks continued to run.
    """
    from nccl_doctor.logs.signs import Case
    from nccl_doctor.logs.verdict import finding

    verdict = _read(_report_of(smoke))
    homes = {rank.rank: rank.host for rank in smoke.ranks}
    for cause in verdict.causes:
        case = Case(cause, verdict.log)
        hosts = [*(homes[rank] for rank in case.ranks if rank in homes), *(e.prefix.host for e in cause.events)]
        named = tuple(dict.fromkeys(host for host in hosts if host in homes.values()))
        update = {"hosts": named or tuple(dict.fromkeys(homes.values())), "severity": Severity.WARNING}
        yield cause.name, finding(case).model_copy(update=update)


def _read(report: Mapping[str, Sequence[str]]) -> LogVerdict:
    from nccl_doctor.logs.diagnose import LogSource, diagnose

    return diagnose([LogSource(host, ["\n".join(lines).encode() + b"\n"]) for host, lines in report.items()])
