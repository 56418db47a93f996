"""How a job is started, for people and for machines.

What is no command begins with "#", so that the whole can be kept as a script.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.documents import Launch, RankPlace
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.safe import clean
from nccl_doctor.report.text import table
from nccl_doctor.text.hostlist import fold_numbers, grouped, nouns, plural

_WIDTH = 100
_ROWS = 64
"""Beyond so many ranks a row stands for a whole node."""


def render(plan: Launch, _options: RenderOptions) -> str:
    """The ranks, then each host's line, which stands alone."""
    ranks = grouped((place.host, place) for place in plan.ranks)
    master = f"master {plan.master_addr}:{plan.master_port}"
    blocks = [[f"# {plural(len(ranks), 'node')}, {plural(plan.world_size, 'rank')}, {master}", *_drawn(plan.ranks)]]
    if plan.notes:
        blocks.append([f"# {clean(note)}" for note in plan.notes])
    for one in plan.commands:
        there = ", ".join(filter(None, (f"on {clean(one.host or '')}", one.place)))
        where = "here, for all hosts" if one.host is None else f"{there}, {_span(ranks[one.host])}"
        blocks.append([f"# {where}:", one.command])
    return "\n".join("\n".join([*block, ""]) for block in blocks)


def render_script(plan: Launch, _options: RenderOptions) -> str:
    """Slurm's batch script, as it is."""
    return plan.commands[0].command


def _span(places: list[RankPlace]) -> str:
    numbers = fold_numbers(place.rank for place in places)
    return f"{nouns(len(places), 'rank')} {numbers}"


def _ends(places: list[RankPlace], name: str) -> str:
    """The first and the last of a node's numbers."""
    first, last = (getattr(place, name) for place in (places[0], places[-1]))
    return "-" if first is None else str(first) if len(places) == 1 else f"{first} to {last}"


def _drawn(places: tuple[RankPlace, ...]) -> Iterator[str]:
    """A row a rank, its node named once."""
    nodes = grouped((place.node_rank, place) for place in places)
    rows: list[tuple[str, ...]] = []
    for node, its in nodes.items():
        if len(places) > _ROWS:
            rows.append((str(node), its[0].host, *(_ends(its, name) for name in ("local_rank", "rank", "gpu"))))
            continue
        for place in its:
            head = ("", "") if place.local_rank else (str(node), place.host)
            rows.append((*head, str(place.local_rank), str(place.rank), "-" if place.gpu is None else place.gpu))
    for line in table(("node", "host", "local rank", "global rank", "GPU"), rows, _WIDTH):
        yield f"#   {line}".rstrip()
