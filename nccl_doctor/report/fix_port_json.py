"""``fix-port`` as JSON."""

from __future__ import annotations

from typing import Any

from nccl_doctor import __version__
from nccl_doctor.model.ports import Holder, HolderJob, PortReport
from nccl_doctor.report.render import RenderOptions


def render(report: PortReport, _options: RenderOptions) -> str:
    """The JSON document; its fields are promised to scripts, and only added to."""
    suggestion = report.suggestion
    fields: dict[str, Any] = {
        "schema": 1,
        "version": __version__,
        "command": "fix-port",
        "host": report.host,
        "port": report.port,
        "free": report.free,
        "cause": report.cause,
        "error": report.error,
        "hint": report.hint,
        "time_wait_s": report.time_wait_s,
        "holders": [_holder_fields(holder, job) for job in report.jobs for holder in job.holders],
        "sockets": [sock._asdict() for sock in report.sockets],
        "elsewhere": [one._asdict() for one in report.elsewhere],
        "ended": list(report.ended),
        "left": list(report.left),
        "suggestion": suggestion and {"port": suggestion.port, "command": suggestion.command},
        "instead_of": report.instead_of,
    }
    import json

    return json.dumps(fields, indent=2) + "\n"


def _holder_fields(holder: Holder, job: HolderJob) -> dict[str, Any]:
    from datetime import datetime, timezone

    gpus = [{"pid": member.pid, **use._asdict()} for member in job.members for use in member.gpus]
    started = datetime.fromtimestamp(holder.started, timezone.utc).isoformat(timespec="seconds")
    return {
        **holder._asdict(),
        "started": started,
        "age_s": round(holder.age_s, 3),
        "tree": list(holder.tree),
        "unit": job.unit,
        "gpus": gpus,
        "refusal": job.refusal,
    }
