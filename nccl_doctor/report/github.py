"""Renders the report as annotations of a GitHub Actions workflow, one line for each diagnosis.

Sources for the format and escapes: GitHub's "Workflow commands for GitHub Actions", and actions/toolkit,
packages/core/src/command.ts.
"""

from __future__ import annotations

from nccl_doctor.model.finding import CheckResult, Diagnosis, LogLine, Outcome, Severity
from nccl_doctor.model.report import Report
from nccl_doctor.report.human import verdict, where
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.shell import clean

_KINDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report, _options: RenderOptions) -> str:
    """Return annotations for each diagnosis and each check without a verdict, followed by the verdict line."""
    gravest = max(report.diagnoses, key=lambda diagnosis: diagnosis.severity.rank, default=None)
    lines = [*map(_diagnosis, report.diagnoses)]
    lines += [_unjudged(check) for check in report.checks if check.outcome in (Outcome.UNKNOWN, Outcome.CRASH)]
    return "\n".join([*lines, clean(verdict(report, gravest)[2])]) + "\n"


def _diagnosis(diagnosis: Diagnosis) -> str:
    hosts = where(diagnosis)
    place = next((item for item in diagnosis.evidence if isinstance(item, LogLine)), None)
    properties = {"title": f"{diagnosis.code} {diagnosis.name}{f' on {hosts}' if hosts else ''}"}
    if place is not None:
        properties |= {"file": place.file, "line": str(place.line)}
    commands = [f"{command.host or 'this machine'}: {command.command}" for command in diagnosis.fix.commands]
    return _line(_KINDS[diagnosis.severity], properties, [diagnosis.message, diagnosis.fix.summary, *commands])


def _unjudged(check: CheckResult) -> str:
    return _line("warning", {"title": f"{check.code} {check.name}: not judged"}, [check.reason or "no reason given"])


def _line(kind: str, properties: dict[str, str], lines: list[str]) -> str:
    shown = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {shown}::" + "%0A".join(_escaped(line) for line in lines if line)


def _escaped(text: str, more: str = "") -> str:
    text = clean(text).replace("%", "%25")
    for character in more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
