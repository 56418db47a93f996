from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import xmlschema
from hypothesis import HealthCheck, given, settings

from nccl_doctor.model.finding import CheckResult, Outcome, Severity
from nccl_doctor.model.report import Report
from nccl_doctor.report import junit
from nccl_doctor.report.render import RenderOptions
from tests.report.reports import ALL, STALE, healthy, host_away, log, one_fault, render
from tests.report.strategies import REPORTS

SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))


def parsed(report: Report) -> ET.Element:
    return ET.fromstring(render(report, "junit"))


def outcome(root: ET.Element, name: str) -> ET.Element:
    return root.findall(f".//testcase[@name='{name}']/*")[0]


@pytest.mark.parametrize("name", ALL)
def test_the_document_is_valid(name: str) -> None:
    SCHEMA.validate(render(ALL[name](), "junit"))


def test_the_schema_refuses_what_is_none() -> None:
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        SCHEMA.validate("<testsuites tests='1'><testcase name='x' classname='y'/></testsuites>")


def test_a_suite_per_category_with_its_counts() -> None:
    root = parsed(one_fault())
    counts = {"tests": "59", "failures": "2", "errors": "0", "skipped": "1"}
    assert root.attrib == {"name": "nccl-doctor check", "time": "2.300", **counts}
    assert [suite.get("name") for suite in root] == ["interfaces", "ports", "allreduce"]
    assert root[2].attrib == {"name": "allreduce", "tests": "2", "failures": "1", "errors": "0", "skipped": "1"}
    assert root[0][0].attrib == {"name": "NCD200 fault-0", "classname": "nccl-doctor.interfaces"}
    assert not list(root[0][0])


def test_what_was_found_is_a_failure_with_its_evidence_and_fix() -> None:
    failure = outcome(parsed(one_fault()), "NCD301 firewall-blocks-port")
    assert failure.tag == "failure"
    assert failure.get("type") == "error"
    assert (failure.get("message") or "").startswith("firewalld on node1 rejects")
    assert failure.text is not None
    lines = failure.text.split("\n")
    assert lines[1] == "seen    node[2-4] -> node1:29500: no route to host (a REJECT looks so)"
    assert lines[-1] == "node1: firewall-cmd --reload"


def test_a_consequence_names_its_cause() -> None:
    failure = outcome(parsed(one_fault()), "NCD701 allreduce-timeout")
    assert failure.get("type") == "consequence"
    assert "\nfollows from NCD301 firewall-blocks-port: node1: firewalld" in (failure.text or "")


def test_a_skipped_check_is_skipped() -> None:
    skipped = outcome(parsed(one_fault()), "NCD704 allreduce-slow")
    assert (skipped.tag, skipped.get("message")) == ("skipped", "no all-reduce ended")


def test_what_could_not_be_judged_does_not_count_as_fine() -> None:
    error = outcome(parsed(host_away()), "NCD302 firewall-blocks-ephemeral")
    assert (error.tag, error.get("type")) == ("error", "unknown")
    assert error.get("message") == "node[2,4]: rules not readable (sudo needs a password)"


def test_a_crash_is_an_error() -> None:
    crash = CheckResult(code="NCD305", name="x", category="ports", outcome=Outcome.CRASH, reason="KeyError: 1")
    error = outcome(parsed(healthy().model_copy(update={"checks": (crash,)})), "NCD305 x")
    assert (error.tag, error.get("type"), error.get("message")) == ("error", "crash", "KeyError: 1")


def test_what_has_no_check_stands_in_a_suite_of_the_command() -> None:
    (suite,) = parsed(log())
    assert suite.get("name") == "logs"
    assert "run/gpu02.log:412  NCCL WARN" in (outcome(suite, "NCD311 no-route-to-host").text or "")


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS)
def test_whatever_the_text_the_document_is_valid(report: Report) -> None:
    SCHEMA.validate(render(report, "junit"))


@pytest.mark.parametrize(("fail_on", "failures"), [("error", 0), ("warning", 1), ("never", 0)])
def test_a_failure_is_what_the_exit_code_counts(fail_on: str, failures: int) -> None:
    found = STALE.model_copy(update={"severity": Severity.WARNING})
    report = healthy().model_copy(update={"diagnoses": (found,)})
    root = ET.fromstring(junit.render(report, RenderOptions(fail_on=fail_on)))
    assert root.get("failures") == str(failures)
    assert found.message in "".join(root.itertext()) + "".join(one.get("message", "") for one in root.iter("failure"))
