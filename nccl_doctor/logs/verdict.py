"""Creates the report on logs from a verdict, in the format that all diagnostic commands share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from nccl_doctor import __version__
from nccl_doctor.logs.diagnose import LogVerdict
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import Cause, Event, Log, RankProgress, absent, rank_of_file, rank_progress
from nccl_doctor.logs.prefix import decode, peel, quote
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.signs import MOST_LINES, WITH_THE_HOSTS, Case, Role, having, signs
from nccl_doctor.model.finding import (
    CheckResult,
    Consequence,
    Diagnosis,
    Finding,
    Fix,
    LogEvent,
    LogLine,
    Outcome,
    Severity,
)
from nccl_doctor.model.register import Check, entry
from nccl_doctor.model.report import Phase, Report
from nccl_doctor.nccl.known_bad import fitting
from nccl_doctor.text.hostlist import capital, fold, grouped, plural, ranks_of

MOST_EVENTS = 500


def report(
    verdict: LogVerdict, seconds: float, selected: Callable[[Check], bool] = lambda _check: True, *, whole: bool = False
) -> Report:
    """Return the report with the ``selected`` diagnoses and, with ``whole``, the settings that NCCL chose."""
    diagnoses = tuple(_diagnosis(Case(cause, verdict.log)) for cause in verdict.causes if selected(entry(cause.name)))
    unfinished = None if diagnoses else _unfinished(verdict)
    if unfinished is not None and selected(entry(unfinished.name)):
        diagnoses = (unfinished,)
    gravest = max((diagnosis.severity.rank for diagnosis in diagnoses), default=0)
    return Report(
        version=__version__,
        command="logs",
        status=("ok", "warning", "error")[gravest],
        complete=not (verdict.log.unsaid or verdict.log.cut or verdict.log.refused),
        title=title(verdict),
        phases=summed(verdict, whole=whole),
        summary=chosen(verdict.log.facts),
        diagnoses=diagnoses,
        checks=tuple(
            CheckResult(code=d.code, name=d.name, category=entry(d.name).category, outcome=Outcome.FOUND)
            for d in diagnoses
        ),
        events=tuple(first_events(verdict)),
        timings={"total": seconds},
    )


def first_events(verdict: LogVerdict) -> Iterator[LogEvent]:
    """Yield the first log line of each fault on each rank, in chronological order."""
    first: dict[tuple[str, object], tuple[Case, Event, bool]] = {}
    for cause in verdict.causes:
        case = Case(cause, verdict.log)
        pairs = [(event, True) for event in cause.events]
        pairs += [(event, False) for _, events in cause.follows for event in events]
        for event, blamed in sorted(pairs, key=lambda pair: pair[0].order):
            rank = case.rank_of(event)
            who = event.prefix.host or event.file if rank is None else rank
            first.setdefault((event.name, who), (case, event, blamed))
    rows = sorted(first.values(), key=lambda item: (item[1].prefix.time or (0, 0, 0), item[1].order))
    for case, event, blamed in rows[:MOST_EVENTS]:
        yield LogEvent(
            rank=case.rank_of(event),
            host=event.prefix.host,
            order=event.order,
            at=event.prefix.time and event.prefix.time[2],
            code=entry(event.name).code,
            name=event.name,
            cause=blamed,
            file=event.file,
            line=event.line,
            text=event.text,
        )


def finding(case: Case) -> Finding:
    """Return the finding for a cause, in the same format as a finding from a live check."""
    shown = signs()[case.cause.name]
    advice = shown.advice(case)
    fix = _with_known_faults(advice.fix, case)
    of_rank = advice.message.startswith(("rank", "a rank"))  # a host's name is not capitalised
    return Finding(
        hosts=case.hosts,
        message=capital(advice.message) if of_rank else advice.message,
        evidence=case.evidence(),
        facts={"ranks": list(case.ranks), "lines": case.count, "reached": _reached(rank_progress(case.log.facts))},
        fix=fix,
        entities=case.entities(shown.interface),
    )


_MAY_BE_OF_NCCL = frozenset({"collective-timeout", "rendezvous-timeout", "cuda-error", "nccl-unknown-error", "killed"})
"""Diagnoses of faults that a bug in NCCL can cause."""


def _with_known_faults(fix: Fix, case: Case) -> Fix:
    """Return the fix, preceded by known bugs of the NCCL version that match the GPUs and ranks in the log."""
    facts = case.log.facts
    version = next(iter(facts.nccl_versions), None)
    if case.cause.name not in _MAY_BE_OF_NCCL or version is None:
        return fix
    gpus = [name for topic, name, _ in facts.chosen if topic == "gpu"]
    ranks = {host: sum(len(process.ranks) for process in facts.of_host(host)) for host in facts.hosts}
    known = [f"NCCL {version} {row['fault']} ({row['source']}). {row['way']}" for row in fitting(version, gpus, ranks)]
    return fix.model_copy(update={"summary": " ".join([*known[:2], fix.summary])})


def _diagnosis(case: Case) -> Diagnosis:
    check, result = entry(case.cause.name), finding(case)
    return Diagnosis(
        code=check.code,
        name=check.name,
        severity=_severity(case),
        explains=tuple(_consequence(name, events, case) for name, events in case.cause.follows),
        **{name: getattr(result, name) for name in ("hosts", "message", "evidence", "facts", "fix", "entities")},
    )


def _reached(where: RankProgress) -> dict[str, list[int]]:
    reached = {milestone.name.lower(): list(ranks) for milestone, ranks in where.reached.items()}
    return reached | ({"missing": list(where.missing)} if where.missing else {})


def _unfinished(verdict: LogVerdict) -> Diagnosis | None:
    """Return the diagnosis for a job that might be hanging or still running.

    The job's log shows neither a fault nor the end of the job.
    """
    log, facts, where = verdict.log, verdict.log.facts, rank_progress(verdict.log.facts)
    if not where.reached or facts.ended_well or facts.torn_down or facts.serving:
        return None
    complete = where.finished and not where.missing
    check = entry(next(iter(having(Role.SILENT if complete else Role.UNFINISHED))))
    last = _last_lines(log)
    spoke = {rank for rank, line in last.items() if rank is not None and "NCCL INFO" not in line.text}
    silent = absent(spoke, facts.world_size) if spoke and complete else ()
    job = f"The log of {plural(facts.world_size or len(facts.ranks), 'rank')}"
    place = "shows no error and no end" if complete else "ends without an error before all had their communicator"
    more = f"; after that {ranks_of(silent)} logged nothing" if silent else ""
    commands = Case(Cause(check.name, ()), log).check(command="hang")
    look = ":" if commands else f" (nccl-doctor hang {WITH_THE_HOSTS})."
    return Diagnosis(
        code=check.code,
        name=check.name,
        severity=Severity.INFO,
        hosts=facts.hosts,
        message=f"{job} {place}: {where.phrase()}{more}.",
        evidence=tuple(sorted(last.values(), key=lambda line: (line.file, line.line))[:MOST_LINES]) if complete else (),
        facts={"reached": _reached(where), "world_size": facts.world_size, "silent": list(silent)},
        fix=Fix(
            summary="A log can't show whether they are still running. If the job hangs, look first at the ranks that "
            f"are behind or silent{look}",
            risk="safe",
            commands=commands,
        ),
    )


_LOOKED_AT = 4096
"""Total number of lines, from the ends of all sources, that are searched for the last line of each rank."""


def _last_lines(log: Log) -> dict[int | None, LogLine]:
    """Return the last line of each rank, with None as the key for lines of unknown ranks."""
    last: dict[int | None, LogLine] = {}
    for reading in log.readings:
        lines = reading.tail.split(b"\n")
        most = max(_LOOKED_AT // len(log.readings), 8)
        for number, line in [*enumerate(lines, reading.lines + 2 - len(lines))][-most:]:
            text = decode(line)
            prefix = peel(text)
            process = log.facts.process(prefix)
            rank = prefix.rank if process is None or process.rank is None else process.rank
            if text[prefix.start :].strip():
                rank = rank_of_file(reading.name) if rank is None else rank
                last[rank] = LogLine(file=reading.name, line=number, text=quote(text, 0, 0))
    return last


def _severity(case: Case) -> Severity:
    """Return the severity of a case.

    The severity is WARNING if NCCL might have continued, for example without a plugin.
    """
    cause, shown = case.cause, signs()[case.cause.name]
    if not cause.follows and cause.grade <= shown.warning_up_to:
        return Severity.WARNING
    if cause.follows or cause.grade > Grade.LIKELY or shown.severity is None:
        return Severity.ERROR
    return shown.severity(case) or Severity.ERROR


def _consequence(name: str, events: tuple[Event, ...], case: Case) -> Consequence:
    hosts = tuple(dict.fromkeys(event.prefix.host for event in events if event.prefix.host))
    ranks = {rank for rank in map(case.rank_of, events) if rank is not None}
    lines = max(case.log.counts[name], len(events))
    who = plural(len(ranks), "rank") if ranks else plural(lines, "line")
    text = " ".join(events[0].message.split())
    quote = text if len(text) <= 100 else text[:99] + "…"
    return Consequence(code=entry(name).code, name=name, hosts=hosts, message=f"{who}: {quote}")


def title(verdict: LogVerdict) -> str:
    """Return a title such as ``8 files, 61 MB, 16 ranks, NCCL 2.21.5, torch 2.4.1``."""
    facts = verdict.log.facts
    parts = [plural(verdict.files, "file"), _size(verdict.bytes)]
    count = facts.world_size or len(facts.ranks)
    parts += [plural(count, "rank")] if count else []
    parts += [fold(facts.hosts)] if 0 < len(facts.hosts) <= 16 else []
    versions = (("NCCL", facts.nccl_versions), ("torch", facts.torch_versions))
    return ", ".join([*parts, *(f"{name} {'/'.join(list(values)[:3])}" for name, values in versions if values)])


def _size(count: int) -> str:
    power = min((len(str(count)) - 1) // 3, 3)
    value = count / 1000**power
    return f"{value:.{int(power == 3 or (power > 0 and value < 10))}f} {('bytes', 'kB', 'MB', 'GB')[power]}"


MOST = 4
"""Maximum number of values of each kind in a row of the report."""


def summed(verdict: LogVerdict, *, whole: bool = False) -> tuple[Phase, ...]:
    """Return rows for data that could not be evaluated.

    If no cause was found or ``whole`` is true, rows for NCCL's choices are added.
    """
    empty, cut = verdict.log.unsaid, verdict.log.cut
    unknown = [f"{fold(empty)} is empty"] if empty else []
    unknown += [f"{fold(cut)} is a truncated archive: the rest is missing"] if cut else []
    refused = grouped((why, name) for name, why in verdict.log.refused.items())
    unknown += [f"{fold(names)} was not read: {why}" for why, names in refused.items()]
    gaps = grouped((host or "a rank", value) for topic, value, host in verdict.log.facts.chosen if topic == "unjudged")
    unknown += [f"NCCL's diagnostics of {host} left out {_few(values)}" for host, values in gaps.items()]
    rows = tuple(Phase(name="log", outcome="unknown", text=text) for text in unknown)
    return rows if verdict.causes and not whole else rows + chosen(verdict.log.facts)


def chosen(facts: Facts) -> tuple[Phase, ...]:
    """Return a row for each setting that NCCL chose according to the log, such as the network interface."""
    return tuple(Phase(name=name, outcome="ok", text=text) for name, text in _rows(facts) if text)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    processes = facts.processes.values()
    topics: dict[str, list[tuple[str, str]]] = {}
    for topic, value, host in facts.chosen:
        topics.setdefault(topic, []).append((host, value))
    driver = [(host, f"{int(value) // 1000}.{int(value) % 1000 // 10}") for host, value in topics.get("driver", ())]
    built_for = [f"for {value}" for _, value in topics.get("built_for", ())]
    versions = {
        "NCCL": [*facts.nccl_versions, *built_for],
        "torch": [*facts.torch_versions],
        "the driver's CUDA": [version for _, version in driver],
    }
    parts = (f"{name} {' / '.join([*dict.fromkeys(of)][:MOST])}" for name, of in versions.items() if of)
    yield "versions", ", ".join(parts).replace(" / for ", " for ")
    count = facts.world_size or len(facts.ranks)
    on = f" on {fold(facts.hosts)}" if facts.hosts else ""
    some = f", {len(facts.ranks)} of them" if on and facts.ranks and len(facts.ranks) < count else ""
    yield "ranks", f"{plural(count, 'rank')}{some}{on}" if count else ""
    yield "interface", _by_host([(p.host, p.interfaces[0].name) for p in processes if p.interfaces])
    plugins = [(p.host, f"{p.network}{f' (plugin {p.plugin})' if p.plugin else ''}") for p in processes if p.network]
    yield "network", _by_host(plugins)
    for name in ("plugin", "devices", "gdr", "algorithm", "channels"):
        yield name, _by_host(topics.get(name, []))
    first = facts.rings[min(facts.rings)] if facts.rings else ()
    order = " ".join(map(str, first[:16])) + (" …" if len(first) > 16 else "")
    yield "rings", f"{plural(len(facts.rings), 'channel')}, the first goes {order}" if facts.rings else ""
    ways: Counter[str] = sum((process.transports for process in processes), Counter())
    yield "ways", ", ".join(f"{way} {number}" for way, number in ways.most_common(MOST))
    yield "busbw", "" if facts.busbw is None else f"{facts.busbw:.3g} GB/s on average"


def _by_host(pairs: list[tuple[str, str]]) -> str:
    hosts: dict[str, dict[str, None]] = {}
    for host, what in pairs:
        hosts.setdefault(what, {})[host] = None
    shown = [f"{what} on {fold(names)}" if any(names) else what for what, names in hosts.items()]
    return _few(shown)


def _few(texts: Sequence[str]) -> str:
    return "; ".join([*texts[:MOST], *([f"{len(texts) - MOST} more"] if len(texts) > MOST else [])])
