"""What a log without a fault says of its job, as rows of the screen's checklist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nccl_doctor.logs.diagnose import LogVerdict
from nccl_doctor.logs.facts import Facts
from nccl_doctor.model.report import Phase
from nccl_doctor.text.hostlist import fold, grouped, plural

MOST = 4
"""Of what a row tells of each kind."""


def summed(verdict: LogVerdict) -> tuple[Phase, ...]:
    """A row for each thing that the log tells; first what could not be judged: what is empty, cut or refused."""
    empty, cut = verdict.log.unsaid, verdict.log.cut
    unknown = [f"{fold(empty)} is empty: nothing to judge"] if empty else []
    unknown += [f"{fold(cut)} ends in the middle of its archive: what followed is not known"] if cut else []
    refused = grouped((why, name) for name, why in verdict.log.refused.items())
    unknown += [
        f"{fold(names)} is not read, for no recorder or RAS writes such: {why}" for why, names in refused.items()
    ]
    rows = [Phase(name="log", outcome="unknown", text=text) for text in unknown]
    if not verdict.causes:
        rows += [Phase(name=name, outcome="ok", text=text) for name, text in _told(verdict.log.facts) if text]
    return tuple(rows)


def _told(facts: Facts) -> Iterator[tuple[str, str]]:
    processes = facts.processes.values()
    versions = (("NCCL", facts.nccl_versions), ("torch", facts.torch_versions))
    yield "versions", ", ".join(f"{name} {' / '.join(list(seen)[:MOST])}" for name, seen in versions if seen)
    count = facts.world_size or len(facts.ranks)
    on = f" on {fold(facts.hosts)}" if facts.hosts else ""
    yield "ranks", f"{plural(count, 'rank')}{on}" if count else ""
    yield "interface", _by_host([(p.host, p.interfaces[0].name) for p in processes if p.interfaces])
    plugins = [(p.host, f"{p.network}{f' (plugin {p.plugin})' if p.plugin else ''}") for p in processes if p.network]
    yield "network", _by_host(plugins)
    yield "rings", _rings(facts)
    ways: Counter[str] = sum((process.transports for process in processes), Counter())
    yield "ways", ", ".join(f"{way} {number}" for way, number in ways.most_common(MOST))
    yield "busbw", "" if facts.busbw is None else f"{facts.busbw:.3g} GB/s on average"


def _by_host(pairs: list[tuple[str, str]]) -> str:
    hosts: dict[str, dict[str, None]] = {}
    for host, what in pairs:
        hosts.setdefault(what, {})[host] = None
    shown = [f"{what} on {fold(names)}" for what, names in hosts.items()]
    return "; ".join([*shown[:MOST], *([f"{len(shown) - MOST} more"] if len(shown) > MOST else [])])


def _rings(facts: Facts) -> str:
    if not facts.rings:
        return ""
    first = facts.rings[min(facts.rings)]
    order = " ".join(map(str, first[:16])) + (" …" if len(first) > 16 else "")
    return f"{plural(len(facts.rings), 'channel')}, the first goes {order}"
