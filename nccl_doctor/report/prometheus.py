"""The report as metrics, for node_exporter's textfile collector.

Its files are in Prometheus' text format 0.0.4 and must hold no timestamps and no series twice; the time of the run is
a metric of its own, so that an alert can see that no run has come for long.
"""

from __future__ import annotations

from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.shell import clean

Samples = list[tuple[dict[str, str], float]]


def render(report: Report, options: RenderOptions) -> str:
    """Return the report's metrics, all gauges."""
    found = [
        ({"code": each.code, "name": each.name, "severity": each.severity.value, "host": host}, 1.0)
        for each in report.diagnoses
        for host in each.hosts or ("",)
    ]
    counts = [
        ({"severity": severity.value}, float(sum(each.severity is severity for each in report.diagnoses)))
        for severity in Severity
    ]
    outcomes = [
        ({"code": each.code, "name": each.name, "category": each.category, "outcome": each.outcome.value}, 1.0)
        for each in report.checks
    ]
    sizes = report.smoke.sizes if report.smoke else ()
    bandwidths = [({"bytes": str(size.bytes)}, size.busbw * 1e9) for size in sizes]
    ended: Samples = [] if options.observed_at is None else [({}, options.observed_at)]
    families: tuple[tuple[str, str, Samples], ...] = (
        ("info", "What ran; always 1.", [({"version": report.version, "command": report.command}, 1.0)]),
        ("up", "Whether the host was reached.", [({"host": each.name}, float(each.reached)) for each in report.hosts]),
        ("complete", "Whether everything could be judged.", [({}, float(report.complete))]),
        ("diagnoses", "Diagnoses of this severity.", counts),
        ("diagnosis", "A diagnosis, on each host at fault; always 1.", found),
        ("check_outcome", "What became of a check; always 1.", outcomes),
        ("phase_duration_seconds", "How long a phase took.", [({"phase": k}, v) for k, v in report.timings.items()]),
        ("allreduce_bus_bandwidth_bytes_per_second", "Bus bandwidth as nccl-tests defines it.", bandwidths),
        ("last_run_timestamp_seconds", "When the facts were taken.", ended),
    )
    return "".join(_family(f"nccl_doctor_{name}", text, samples) for name, text, samples in families)


def _family(name: str, text: str, samples: Samples) -> str:
    """Return the lines of a metric with its samples; nothing where it has none."""
    series: dict[str, float] = {}
    for labels, value in samples:
        # backslashes and quotes as the format wants them; line breaks are gone after cleaning
        escaped = ((label, clean(word).replace("\\", "\\\\").replace('"', '\\"')) for label, word in labels.items())
        shown = ",".join(f'{label}="{word}"' for label, word in escaped)
        series[f"{name}{{{shown}}}" if labels else name] = value
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge", *(f"{key} {value!r}" for key, value in series.items())]
    return "\n".join(lines) + "\n" if series else ""
