"""Renders reports for the terminal, including the reports of ``hang``.

A report ends with the next step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from rich.cells import cell_len, set_cell_size

from nccl_doctor.model.documents import STANDS_STILL, HangReport
from nccl_doctor.model.finding import CheckResult, Consequence, Diagnosis, Fix, Gap, LogLine, Outcome, Severity
from nccl_doctor.model.report import HostSummary, MeshReport, Phase, PhaseOutcome, Report
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.smoke import rates, smoke
from nccl_doctor.report.text import SEVERITY_STYLES, Screen, apart, cut, joined, table, wrap
from nccl_doctor.text.hostlist import fold, grouped, plural, ranks_of
from nccl_doctor.text.shell import clean, pasteable

_OUTCOMES: dict[PhaseOutcome, tuple[str, str]] = {  # word and style of each outcome
    "ok": ("ok", "green"),
    "warning": ("warn", "yellow"),
    "error": ("FAIL", "bold red"),
    "unknown": ("?", "yellow"),
    "n/a": ("n/a", "dim"),
    "skip": ("skip", "dim"),
}
_PHASE_NAME = 13  # cells for the name of a phase; the longest is "environment"


def render(report: Report, options: RenderOptions) -> str:
    """Return the output.

    With ``--quiet``, the output contains only diagnoses and checks without a verdict.
    """
    screen = Screen.of(options)
    ordered = sorted(report.diagnoses, key=lambda item: -item.severity.rank)[::-1]
    blocks = [list(unjudged(report.checks, screen)), *(list(diagnosis(item, screen)) for item in ordered)]
    if not options.quiet:
        opening = [wrap(report.title, screen.width), list(_phases(report.phases, screen))]
        if screen.verbose:
            opening += details(report, screen)
        elif report.mesh and report.mesh.failed:
            opening += matrix(report.mesh, report.hosts, screen)
        opening += rates(report.rates or (), screen)
        if report.smoke and (screen.verbose or report.command == "smoke"):
            opening += smoke(report.smoke, screen)
        chosen = report.summary if screen.verbose and not set(report.summary) <= set(report.phases) else ()
        end = summary(report, ordered[-1] if ordered else None, screen)
        blocks = [*opening, *blocks, list(_phases(chosen, screen)), list(end)]
    return joined(blocks)


def row(phase: Phase) -> str:
    """Return a row of the checklist, without colour and at full length."""
    return clean(f"  {phase.name:<{_PHASE_NAME}}{_OUTCOMES[phase.outcome][0]:>4}    {phase.text}").rstrip()


def _phases(phases: tuple[Phase, ...], screen: Screen) -> Iterator[str]:
    for phase in phases:
        name = f"  {clean(phase.name):<{_PHASE_NAME}}"
        word, style = _OUTCOMES[phase.outcome]
        outcome = f"{word:>4}"
        first, *others = wrap(phase.text, screen.prose, f"{name}{outcome}    ")
        yield name + screen.paint(outcome, style) + first.removeprefix(name + outcome)
        yield from others


_EVIDENCE = 10
_CONSEQUENCES = 3
_LOG_LINES = 3
LABELLED = re.compile(r"(\w{1,12})  +(\S.*)")
"""Pattern of a line of evidence that consists of a label, a gap of at least two spaces, and text. Continuation lines
are aligned with the text after the gap.
"""


def diagnosis(diagnosis: Diagnosis, screen: Screen) -> Iterator[str]:
    """Yield the lines of a diagnosis. The commands of the fix come last, each on its own line."""
    title = clean(f"{diagnosis.severity.value}  {diagnosis.code} {diagnosis.name}")
    head, *more = apart(title, where(diagnosis), screen.prose)
    yield head.replace(title, screen.paint(title, SEVERITY_STYLES[diagnosis.severity]))
    yield from more
    yield from wrap(diagnosis.message, screen.prose, "  ")
    yield from _evidence(diagnosis, screen)
    if screen.verbose and diagnosis.facts:
        for name, value in diagnosis.facts.items():
            yield from wrap(f"{name}: {plain(value)}", screen.prose, "    ", "      ")
    follows = by_consequence(diagnosis.explains)
    most = len(follows) if screen.verbose else _CONSEQUENCES
    for (code, name, message), hosts in islice(follows.items(), most):
        on = f" on {hosts}" if hosts else ""
        yield from wrap(f"Same cause: {message} ({code} {name}{on})", screen.prose, "  ", "    ")
    if most < len(follows):
        yield f"  … and {len(follows) - most} more (shown with -v)"
    yield from _fix(diagnosis.fix, screen)


def plain(value: object) -> str:
    """Return a value as text. For example, a dictionary becomes ``node2 3; node3 none``."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {plain(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def where(diagnosis: Diagnosis) -> str:
    """Return the hosts at fault, preceded by the ranks, if any, whose log lines show the fault."""
    hosts = fold(diagnosis.hosts)
    named = (diagnosis.entities or {}).get("rank")
    if named is None:
        return hosts
    shown = diagnosis.facts.get("ranks") or ()
    ranks = ranks_of(shown) if len(shown) > 1 else f"rank {named}"
    return f"{ranks} ({hosts})" if hosts else ranks


def _evidence(diagnosis: Diagnosis, screen: Screen) -> Iterator[str]:
    shown = diagnosis.evidence if screen.verbose else diagnosis.evidence[:_EVIDENCE]
    named: dict[str, str] = {}  # by short name, the file whose full path was already shown
    for item in shown:
        if isinstance(item, LogLine):
            short = item.file.rpartition("/")[2]
            file = short if named.get(short) == item.file else item.file
            named[short] = item.file
            lines = wrap(f"{file}:{item.line}  {item.text}", screen.prose - 2, "    ", "      ")
            cut = len(lines) > _LOG_LINES and not screen.verbose
            yield from [*lines[: _LOG_LINES - 1], lines[_LOG_LINES - 1] + " …"] if cut else lines
        else:
            labelled = LABELLED.fullmatch(clean(item))
            label, text = (f"    {labelled[1]:<6}  ", labelled[2]) if labelled else ("    ", item)
            yield from wrap(text, screen.prose, label, None if labelled else "      ")
    if len(shown) < len(diagnosis.evidence):
        yield f"    … and {len(diagnosis.evidence) - len(shown)} more (shown with -v)"


def by_consequence(explained: Iterable[Consequence]) -> dict[tuple[str, str, str], str]:
    """Return the folded host list of each consequence, keyed by the consequence's code, name and message."""
    hosts = grouped(((entry.code, entry.name, entry.message), entry.hosts) for entry in explained)
    return {consequence: fold(chain.from_iterable(each)) for consequence, each in hosts.items()}


_HIDDEN = "The command contains characters that a terminal hides or interprets, so it is not shown here; see -o json."


def _fix(fix: Fix, screen: Screen) -> Iterator[str]:
    if fix.summary:
        yield from wrap(fix.summary, screen.prose, "  ")
    for number, (place, commands, shown) in enumerate(by_place(fix)):
        if number:
            yield ""
        if place:
            yield from wrap(place, screen.prose, "  ")
        yield from ("", *commands) if shown else wrap(_HIDDEN, screen.prose, "  ")


def by_place(fix: Fix) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """For each group of hosts with the same commands, yield a heading, the commands, and whether all can be shown.

    A heading is, for example, ``On each of node[2-3], as root:``.
    """
    per_host = grouped(((command.host, command.place), command.command) for command in fix.commands)
    alike = grouped(((side, tuple(lines)), host) for (host, side), lines in per_host.items())
    for (side, lines), hosts in alike.items():
        names = [host for host in hosts if host is not None]
        there = f"on {'each of ' if len(names) > 1 else ''}{fold(names)}" if names else ""
        # this machine alone, without root, needs no line
        here = "on this machine" if None in hosts and (fix.needs_root or len(alike) > 1 or names) else ""
        places = " and ".join(filter(None, (there, here)))
        place = f"O{places[1:]}{f', {side}' if side else ''}{', as root' if fix.needs_root else ''}:" if places else ""
        yield place, lines, all(map(pasteable, lines))


_MATRIX = 32  # hosts up to which the mesh is drawn; in larger clusters failed dials are listed, folded


def details(report: Report, screen: Screen) -> Iterator[list[str]]:
    if report.hosts:
        hosts = [(str(host.node_rank), host.name, host.address, _uses(host)) for host in report.hosts]
        yield table(("rank", "host", "address", "NCCL uses"), hosts, screen.prose)
    if report.checks:
        alike = grouped((fact, host.name) for host in report.hosts for fact in host.seen.items())
        order = {what: place for place, (what, _) in enumerate(alike)}
        facts = [(what, fold(names), text) for (what, text), names in alike.items()]
        if facts:  # hosts with the same values together
            yield table(("seen", "on", "what"), sorted(facts, key=lambda row: order[row[0]]), screen.prose)
        rows = [(c.code, c.name, c.outcome.value, c.reason or c.looked_at or "") for c in report.checks]
        yield table(("code", "check", "outcome", "why"), rows, screen.prose)
    if report.mesh:
        yield from matrix(report.mesh, report.hosts, screen)
        dials = (((way.outcome, str(way.port), f"{way.dst} ({way.address})"), way.src) for way in report.mesh.failed)
        failed = [(*target, fold(sources)) for target, sources in grouped(dials).items()]
        if failed:
            yield table(("dial", "port", "to", "from"), failed, screen.prose)
    ranks = report.smoke.ranks if report.smoke else ()
    if not all(rank.ok for rank in ranks):
        rows = [(str(rank.rank), rank.host, rank.stage, rank.error or "") for rank in ranks]
        yield table(("rank", "host", "last stage", "error"), rows, screen.prose)
    load = report.load
    if load is not None and load.second_try:
        busy = f" ({load.controller.words})" if load.controller.busy else ""
        yield wrap(f"answered at the second attempt{busy}", screen.prose, f"{fold(load.second_try)}  ")
    if report.timings:
        spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.timings.items())
        yield wrap(spent, screen.prose, "took  ")


def _uses(host: HostSummary) -> str:
    chosen = host.nccl_interface
    if not host.reached or chosen is None:
        return "unknown" if host.reached else "not reached"
    version = f"NCCL {chosen.nccl_version}, " if chosen.nccl_version else ""
    says = "according to libnccl" if chosen.source == "libnccl" else "according to our model"
    return f"{chosen.name} {chosen.address} ({version}{says})"


def matrix(mesh: MeshReport, hosts: Sequence[HostSummary], screen: Screen) -> Iterator[list[str]]:
    """Yield a table of the connection tests by rank, with connecting hosts as rows and their targets as columns."""
    reached = [host for host in hosts if host.reached]
    if mesh.tested < mesh.pairs or not 1 < len(reached) <= _MATRIX:
        return
    failed = {(dial.src, dial.dst) for dial in mesh.failed}
    names = [host.name for host in reached]
    widest = screen.prose - len(names) - 2
    labels = ["from \\ to", *(cut(f"{host.node_rank} {host.name}", widest) for host in reached)]
    marks = [["." if src == dst else "x" if (src, dst) in failed else "+" for dst in names] for src in names]
    columns = [[str(host.node_rank % 10) for host in reached], *marks]
    width = max(map(cell_len, labels))
    head, *rows = (f"{set_cell_size(label, width)}  {''.join(row)}" for label, row in zip(labels, columns, strict=True))
    legend = "+ reached  x failed"
    fits = cell_len(head) + 3 + len(legend) <= screen.prose
    yield [f"{head}   {legend}", *rows] if fits else [head, *rows, legend]


_NAMES = 6
_NO_REASON = "no reason given"


def unjudged(checks: tuple[CheckResult, ...], screen: Screen) -> Iterator[str]:
    """Yield the checks without a verdict, grouped by reason, and then the checks that crashed."""
    gaps = [
        (gap, check.name)
        for check in checks
        if check.outcome is Outcome.UNKNOWN
        for gap in check.gaps or (Gap(hosts=(), reason=check.reason or _NO_REASON),)
    ]
    if gaps:
        yield screen.paint("Could not be judged:", "yellow")
    for (reason, _), each in grouped(((gap.reason, bool(gap.hosts)), (gap.hosts, name)) for gap, name in gaps).items():
        everywhere = tuple(dict.fromkeys(host for hosts, _ in each for host in hosts))
        where = f"{fold(everywhere)}: " if everywhere else ""
        named = _named(everywhere, each, len(each) if screen.verbose else _NAMES)
        yield from wrap(f"{where}{reason} ({named})", screen.prose, "  ", "    ")
    crashed = [check for check in checks if check.outcome is Outcome.CRASH]
    if crashed:
        yield screen.paint("Crashed (a bug in nccl-doctor):", "yellow")
    for check in crashed:
        yield from wrap(f"{check.code} {check.name}: {check.reason or _NO_REASON}", screen.prose, "  ", "    ")


def _named(everywhere: tuple[str, ...], each: list[tuple[tuple[str, ...], str]], limit: int) -> str:
    """Return the names of the checks that have no verdict for the same reason.

    The checks that have no verdict on any of the hosts come first.
    """
    sets = [(frozenset(hosts), name) for hosts, name in each]
    sets.sort(key=lambda pair: pair[0] != frozenset(everywhere))
    groups = [
        ("" if hosts == set(everywhere) else f"on {fold(host for host in everywhere if host in hosts)}: ", names)
        for hosts, names in grouped(sets[:limit]).items()
    ]
    more = f" and {len(sets) - limit} more" if len(sets) > limit else ""
    return "; ".join(f"{where}{', '.join(names)}" for where, names in groups) + more


def verdict(report: Report, cause: Diagnosis | None) -> tuple[bool, list[str], str]:
    """Return three values: whether the verdict is "Ready", the counts as phrases, and the summary line.

    ``cause`` is the most severe diagnosis.
    """
    outcomes = Counter(check.outcome for check in report.checks)
    gaps = outcomes[Outcome.UNKNOWN] + outcomes[Outcome.CRASH]
    grave = cause is not None and cause.severity is not Severity.INFO
    ready = report.complete and outcomes[Outcome.PASS] > 0 and not gaps and not grave and not report.left_out
    counts = _counts(report.diagnoses, outcomes)
    if not ready and cause is None:
        counts.insert(0, "No faults found")
    total = report.timings.get("total")
    took = "" if total is None else f" ({total:.1f} s)"
    line = ("Ready. " if ready else "") + ", ".join(counts) + took + "."
    if not report.complete and not gaps:
        line += " Not everything could be checked."
    if report.left_out and report.status != "error":
        line += f" Not checked: {', '.join(report.left_out)}."
    return ready, counts, line


def more(codes: str, cause: Diagnosis | None) -> str:
    """Return a reference to the ``explain`` pages of ``codes``, or "" if ``cause`` is None."""
    return "" if cause is None else f"More: nccl-doctor explain {codes}"


def summary(report: Report, cause: Diagnosis | None, screen: Screen) -> Iterator[str]:
    """Yield the summary line with the counts and a reference to the ``explain`` pages, followed by the next step."""
    ready, counts, line = verdict(report, cause)
    alike = [each.code for each in report.diagnoses if cause and each.severity is cause.severity]
    codes = ", ".join(dict.fromkeys([*([cause.code] if cause else []), *alike]))
    page = more(codes, cause)
    fits = cell_len(line) + 1 + cell_len(page) <= screen.width

    first, *others = wrap(f"{line} {page}" if page and fits else line, screen.width)
    head = "Ready." if ready else counts[0]
    style = "bold green" if ready else SEVERITY_STYLES[cause.severity] if cause else "bold yellow"
    yield screen.paint(head, style) + first.removeprefix(head)
    yield from others
    if page and not fits:
        yield from wrap(page, screen.width)
    yield from filter(pasteable, (report.next_step or "").splitlines())


def _counts(diagnoses: tuple[Diagnosis, ...], outcomes: Counter[Outcome]) -> list[str]:
    """Return counts such as ``1 error``, ``0 warnings`` and ``56 checks passed``.

    Zero counts are left out, except that ``0 warnings`` is shown if there are errors and every check has a verdict.
    """
    by_severity = Counter(each.severity for each in diagnoses)
    gaps = outcomes[Outcome.UNKNOWN] + outcomes[Outcome.CRASH]
    warnings, passed = by_severity[Severity.WARNING], outcomes[Outcome.PASS]
    counts = {
        plural(by_severity[Severity.ERROR], "error"): by_severity[Severity.ERROR],
        plural(warnings, "warning"): warnings or (by_severity[Severity.ERROR] and not gaps),
        plural(by_severity[Severity.INFO], "note"): by_severity[Severity.INFO],
        f"{plural(passed, 'check')} passed": passed,
        f"{outcomes[Outcome.NOT_APPLICABLE]} not applicable": outcomes[Outcome.NOT_APPLICABLE],
        f"{outcomes[Outcome.UNKNOWN]} could not be judged": outcomes[Outcome.UNKNOWN],
        f"{outcomes[Outcome.CRASH]} crashed": outcomes[Outcome.CRASH],
    }
    return [words for words, count in counts.items() if count]


_READ = {
    "read": "stacks read without pausing ranks",
    "pause": "each rank paused for a few milliseconds to read its stack",
    "native": "each rank paused while its stack, with native frames, was read",
    "none": "no stacks (--no-stacks)",
}


def render_hang(report: HangReport, options: RenderOptions) -> str:
    """Return the terminal output of ``hang``.

    With ``--quiet``, the output contains only the diagnoses or, if there are none, an unknown verdict.
    """
    screen = Screen.of(options)
    blocks = [list(diagnosis(item, screen)) for item in reversed(report.diagnoses)]
    if not options.quiet:
        blocks = [*_hang_opening(report, screen), *blocks]
    if not report.diagnoses and (report.verdict == "unknown" or not options.quiet):
        texts = filter(None, (report.message, report.next_time))
        blocks.append([line for text in texts for line in wrap(text, screen.prose)])
    if not options.quiet:
        blocks.append(list(_hang_end(report, screen)))
    return joined(blocks)


def _hang_opening(report: HangReport, screen: Screen) -> Iterator[list[str]]:
    if job := report.job:
        head = f"{plural(report.hosts, 'host')}, {job.world_size} ranks, master {job.master_addr}:{job.master_port}"
        looks = f"{plural(len(report.looks), 'sample')}, {report.interval_s:g} s apart; {_READ[report.stacks]}"
        yield [*wrap(head, screen.width), *wrap(looks, screen.width)]
    if screen.verbose and report.ranks:
        rows = [
            (
                str(entry.rank),
                entry.host or "?",
                str(entry.pid or "-"),
                entry.state,
                entry.doing,
                "behind" if entry.behind else "",
            )
            for entry in report.ranks
        ]
        yield table(("rank", "host", "pid", "state", "where", ""), rows, screen.width)
    elif not report.diagnoses:
        yield [line for place in report.places for line in wrap(place, screen.prose, "  ", "    ")]


def _hang_end(report: HangReport, screen: Screen) -> Iterator[str]:
    for text in report.not_seen if screen.verbose or report.verdict == "unknown" else report.not_seen[:2]:
        yield from wrap(f"Not available: {text}", screen.prose, "", "  ")
    for text in report.other_jobs[:4]:
        yield from wrap(f"Another job, not examined: {text}", screen.prose, "", "  ")
    seconds = report.timings.get("total", 0)
    left = " The job was not touched." if report.ranks else ""
    yield from wrap(f"Verdict: {report.verdict} ({seconds:.1f} s).{left}", screen.width)
    if report.verdict in STANDS_STILL and report.diagnoses:
        yield more(report.diagnoses[0].code, report.diagnoses[0])
