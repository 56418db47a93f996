from __future__ import annotations

from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families

from nccl_doctor.model.report import Report
from tests.report.reports import STALE, healthy, host_away, one_fault, render
from tests.report.strategies import REPORTS


def samples(report: Report, observed_at: float | None = None) -> Iterator[tuple[str, dict[str, str], float]]:
    text = render(report, "prometheus", observed_at=observed_at)
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type == "gauge"
        for sample in family.samples:
            assert sample.timestamp is None, "node_exporter refuses files with timestamps"
            yield sample.name.removeprefix("nccl_doctor_"), sample.labels, sample.value


def family(report: Report, name: str) -> list[tuple[dict[str, str], float]]:
    return [(labels, value) for found, labels, value in samples(report) if found == name]


def test_what_ran_and_when() -> None:
    assert ("info", {"version": "0.1.0", "command": "check"}, 1.0) in samples(healthy())
    assert ("last_run_timestamp_seconds", {}, 1.75e9) in samples(healthy(), observed_at=1.75e9)
    assert "timestamp" not in render(healthy(), "prometheus")


def test_each_host_is_up_or_down() -> None:
    assert {labels["host"]: value for labels, value in family(host_away(), "up")} == {
        "node1": 1,
        "node2": 1,
        "node3": 0,
        "node4": 1,
    }
    assert family(host_away(), "complete") == [({}, 0.0)]


def test_a_diagnosis_is_a_series_on_each_host() -> None:
    stale = {"code": "NCD601", "name": "stale-process", "severity": "warning"}
    found = family(host_away(), "diagnosis")
    assert ({**stale, "host": "node2"}, 1.0) in found
    assert ({**stale, "host": "node3"}, 1.0) in found
    counts = {labels["severity"]: value for labels, value in family(host_away(), "diagnoses")}
    assert counts == {"info": 0, "warning": 1, "error": 1}


def test_a_diagnosis_without_hosts_has_an_empty_label() -> None:
    report = healthy().model_copy(update={"diagnoses": (STALE.model_copy(update={"hosts": ()}),)})
    assert [labels["host"] for labels, _ in family(report, "diagnosis")] == [""]


def test_no_series_stands_twice() -> None:
    report = healthy().model_copy(update={"diagnoses": (STALE, STALE)})
    assert len(family(report, "diagnosis")) == 2


def test_outcomes_durations_and_bandwidths() -> None:
    skipped = {"code": "NCD704", "name": "allreduce-slow", "category": "allreduce", "outcome": "skip"}
    assert (skipped, 1.0) in family(one_fault(), "check_outcome")
    assert ({"phase": "smoke"}, 4.1) in family(healthy(), "phase_duration_seconds")
    bandwidths = family(healthy(), "allreduce_bus_bandwidth_bytes_per_second")
    assert ({"bytes": "67108864"}, 4.6e9) in bandwidths
    assert not family(one_fault(), "allreduce_bus_bandwidth_bytes_per_second")


def test_labels_are_escaped() -> None:
    name = 'back\\slash "quoted"'
    report = healthy().model_copy(update={"diagnoses": (STALE.model_copy(update={"hosts": (name,)}),)})
    assert [labels["host"] for labels, _ in family(report, "diagnosis")] == [name]


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS)
def test_whatever_the_text_it_parses_and_no_series_stands_twice(report: Report) -> None:
    series = [(name, tuple(labels.items())) for name, labels, _ in samples(report)]
    assert len(series) == len(set(series))
