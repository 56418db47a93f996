"""Renders the report as metrics for node_exporter's textfile collector.

The textfile collector reads files in Prometheus' text format 0.0.4, which must not contain timestamps or duplicate
series. The time of the run is a separate metric, so that alerts can detect missing runs.
"""

from __future__ import annotations

from nccl_doctor.model.documents import HangWatch
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.shell import clean

Samples = list[tuple[dict[str, str], float]]


def render(report: Report, options: RenderOptions) -> str:
    diagnoses = [
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
        ("info", "Command that ran; always 1.", [({"version": report.version, "command": report.command}, 1.0)]),
        (
            "up",
            "1 if the host was reached, otherwise 0.",
            [({"host": each.name}, float(each.reached)) for each in report.hosts],
        ),
        ("complete", "1 if everything could be judged, otherwise 0.", [({}, float(report.complete))]),
        ("diagnoses", "Number of diagnoses of this severity.", counts),
        ("diagnosis", "A diagnosis, on each host at fault; always 1.", diagnoses),
        ("check_outcome", "Outcome of a check; always 1.", outcomes),
        ("phase_duration_seconds", "Duration of a phase.", [({"phase": k}, v) for k, v in report.timings.items()]),
        ("allreduce_bus_bandwidth_bytes_per_second", "Bus bandwidth as nccl-tests defines it.", bandwidths),
        ("last_run_timestamp_seconds", "Time at which the facts were collected.", ended),
    )
    return "".join(_family(f"nccl_doctor_{name}", text, samples) for name, text, samples in families)


def render_watch(watch: HangWatch, _options: RenderOptions) -> str:
    job = {} if watch.job is None else {"master": f"{watch.job.master_addr}:{watch.job.master_port}"}
    ranks = [({"rank": str(row.rank), "host": row.host, **job}, row.idle_s) for row in watch.ranks]
    idle: Samples = [] if watch.idle_s is None else [(job, watch.idle_s)]
    watched: Samples = [] if watch.watched_s is None else [(job, watch.watched_s)]
    families: tuple[tuple[str, str, Samples], ...] = (
        ("info", "Command that ran; always 1.", [({"version": watch.version, "command": watch.command}, 1.0)]),
        ("job_seconds_since_progress", "Seconds since the job was last seen to advance.", idle),
        ("job_watched_seconds", "Seconds since the job was first seen.", watched),
        ("rank_seconds_since_progress", "Seconds since the rank was last seen to advance.", ranks),
        (
            "job_hung",
            "A confirmed hang, by its diagnosis; always 1.",
            [({"name": watch.hung, **job}, 1.0)] * bool(watch.hung),
        ),
        ("blind", "A host of the job that can't be observed; always 1.", [({"host": row}, 1.0) for row in watch.blind]),
        ("last_run_timestamp_seconds", "Time of the sample.", [({}, watch.at)]),
    )
    return "".join(_family(f"nccl_doctor_{name}", text, samples) for name, text, samples in families)


def _family(name: str, text: str, samples: Samples) -> str:
    """Return the lines of a metric with its samples, or "" if there are no samples."""
    series: dict[str, float] = {}
    for labels, value in samples:
        # backslashes and quotes are escaped for the format; cleaning has removed line breaks
        escaped = ((label, clean(word).replace("\\", "\\\\").replace('"', '\\"')) for label, word in labels.items())
        shown = ",".join(f'{label}="{word}"' for label, word in escaped)
        series[f"{name}{{{shown}}}" if labels else name] = value
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge", *(f"{key} {value!r}" for key, value in series.items())]
    return "\n".join(lines) + "\n" if series else ""
