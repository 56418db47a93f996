"""The screen of ``nccl-doctor hang``: does the job stand still, where its ranks are, for whom they wait, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.documents import STANDS_STILL, HangReport
from nccl_doctor.report.human import diagnosis
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import Screen, joined, table, wrap
from nccl_doctor.text.hostlist import plural

_READ = {
    "read": "stacks read without stopping a rank",
    "pause": "each rank paused for milliseconds to read its stack",
    "native": "each rank paused for milliseconds to read its stack",
    "none": "no stacks (--no-stacks)",
}


def render(report: HangReport, options: RenderOptions) -> str:
    """Blocks of lines; quietly only what stands still or could not be told."""
    screen = Screen.of(options)
    blocks = [list(diagnosis(found, screen)) for found in reversed(report.diagnoses)]
    if not options.quiet:
        blocks = [*_opening(report, screen), *blocks]
    if not report.diagnoses and (report.verdict == "unknown" or not options.quiet):
        blocks.append([*wrap(report.message, screen.prose), *wrap(report.next_time or "", screen.prose)])
    if not options.quiet:
        blocks.append(list(_end(report, screen)))
    return joined(blocks)


def _opening(report: HangReport, screen: Screen) -> Iterator[list[str]]:
    if job := report.job:
        head = f"{plural(report.hosts, 'host')}, {job.world_size} ranks, master {job.master_addr}:{job.master_port}"
        looks = f"{plural(len(report.looks), 'look')}, {report.interval_s:g} s apart; {_READ[report.stacks]}"
        yield [*wrap(head, screen.width), *wrap(looks, screen.width)]
    if screen.verbose and report.ranks:
        rows = [
            (str(one.rank), one.host or "?", str(one.pid or "-"), one.state, one.doing, "behind" if one.behind else "")
            for one in report.ranks
        ]
        yield table(("rank", "host", "pid", "state", "where", ""), rows, screen.width)
    elif not report.diagnoses:
        yield [line for place in report.places for line in wrap(place, screen.prose, "  ", "    ")]


def _end(report: HangReport, screen: Screen) -> Iterator[str]:
    for one in report.not_seen if screen.verbose or report.verdict == "unknown" else report.not_seen[:2]:
        yield from wrap(f"Not seen: {one}", screen.prose, "", "  ")
    for one in report.other_jobs[:4]:
        yield from wrap(f"Another job, not looked at: {one}", screen.prose, "", "  ")
    seconds = report.timings.get("total", 0)
    yield from wrap(f"Verdict: {report.verdict}, in {seconds:.1f} s; the job was left as it was.", screen.width)
    if report.verdict in STANDS_STILL and report.diagnoses:
        yield f"More: nccl-doctor explain {report.diagnoses[0].code}"
