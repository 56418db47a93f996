"""Renders the report as JUnit XML for Jenkins and GitLab, with a suite per category and a case per check.

A check with a finding of severity ``--fail-on`` or higher is reported as a failure; the exit code follows the same
rule. Less severe findings appear in the output of a passing case. A check without a verdict is an error, not "skipped",
because skipped cases count as passed.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from nccl_doctor.model.finding import CheckResult, Diagnosis, LogLine, Outcome, Severity
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.shell import clean

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters outside XML 1.0's Char production (section 2.2), which can't be represented by escapes either."""


def render(report: Report, options: RenderOptions) -> str:
    """Return the report as XML. Diagnoses without a check are in a suite named after the command."""
    suites = grouped((check.category, _case(check, report, options.fail_on)) for check in report.checks)
    checked = {check.code for check in report.checks}
    by_code = {diagnosis.code: diagnosis for diagnosis in report.diagnoses if diagnosis.code not in checked}
    for diagnosis in by_code.values():
        check = CheckResult(code=diagnosis.code, name=diagnosis.name, category=report.command, outcome=Outcome.FOUND)
        suites.setdefault(report.command, []).append(_case(check, report, options.fail_on))

    root = _element("testsuites", name=f"nccl-doctor {report.command}")
    root.attrib |= _counts(case for cases in suites.values() for case in cases)
    if "total" in report.timings:
        root.set("time", f"{report.timings['total']:.3f}")
    for category, cases in suites.items():
        suite = _element("testsuite", name=category)
        suite.attrib |= _counts(cases)
        suite.extend(cases)
        root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(cases: Iterable[ET.Element]) -> dict[str, str]:
    cases = list(cases)
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    return {"tests": str(len(cases))} | {
        count: str(sum(case.find(kind) is not None for case in cases)) for count, kind in kinds.items()
    }


def _case(check: CheckResult, report: Report, fail_on: str) -> ET.Element:
    case = _element("testcase", name=f"{check.code} {check.name}", classname=f"nccl-doctor.{check.category}")
    match check.outcome:
        case Outcome.FOUND:
            case.append(_found(check, report, fail_on))
        case Outcome.SKIP | Outcome.NOT_APPLICABLE:
            case.append(_element("skipped", message=check.reason or check.outcome.value))
        case Outcome.UNKNOWN | Outcome.CRASH:
            case.append(_element("error", message=check.reason or check.outcome.value, type=check.outcome.value))
    return case


def _found(check: CheckResult, report: Report, fail_on: str) -> ET.Element:
    """Return the result of a case: the check's diagnoses, and the diagnoses that explain the check's findings."""
    diagnoses = [diagnosis for diagnosis in report.diagnoses if diagnosis.code == check.code]
    under = [(effect, cause) for cause in report.diagnoses for effect in cause.explains if effect.code == check.code]
    blocks = [_diagnosis(diagnosis) for diagnosis in diagnoses]
    for effect, cause in under:
        follows = f"follows from {cause.code} {cause.name}: {_at(cause.hosts)}{cause.message}"
        blocks.append([_at(effect.hosts) + effect.message, follows])
    severities = [diagnosis.severity for diagnosis in (*diagnoses, *(cause for _, cause in under))]
    gravest = max(severities, key=lambda each: each.rank, default=Severity.ERROR)
    if fail_on == "never" or gravest.rank < Severity(fail_on).rank:
        shown = _element("system-out")
    else:
        messages = [diagnosis.message for diagnosis in diagnoses] + [effect.message for effect, _ in under]
        shown = _element("failure", message=" ".join(messages), type=gravest.value if diagnoses else "consequence")
    shown.text = "\n\n".join("\n".join(map(_text, lines)) for lines in blocks)
    return shown


def _diagnosis(diagnosis: Diagnosis) -> list[str]:
    lines = [
        f"{line.file}:{line.line}  {line.text}" if isinstance(line, LogLine) else line for line in diagnosis.evidence
    ]
    commands = [
        f"{', '.join(filter(None, (step.host, step.place)))}: {step.command}" if step.host else step.command
        for step in diagnosis.fix.commands
    ]
    return [_at(diagnosis.hosts) + diagnosis.message, *lines, diagnosis.fix.summary, *commands]


def _at(hosts: tuple[str, ...]) -> str:
    return f"{fold(hosts)}: " if hosts else ""


def _element(tag: str, **attributes: str) -> ET.Element:
    return ET.Element(tag, {name: _text(value) for name, value in attributes.items()})


def _text(text: str) -> str:
    return _NOT_XML.sub("", clean(text))
