"""``diff`` as one HTML file."""

from __future__ import annotations

from nccl_doctor.model.documents import Difference
from nccl_doctor.report.html.cards import cards
from nccl_doctor.report.html.document import document
from nccl_doctor.report.html.page_views import Count, Table
from nccl_doctor.report.html.report import head, pages
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.hostlist import fold, plural


def render(found: Difference, options: RenderOptions) -> str:
    """The whole file."""
    new, gone = found.diagnoses.new, found.diagnoses.gone
    told = f"Diagnoses: {len(new)} new, {len(gone)} gone; {plural(len(found.changes), 'fact')} changed."
    changes = tuple((fold(one.hosts) or "the cluster", one.what, one.before, one.after) for one in found.changes)
    return document(
        "diff.html",
        head=head(found, options),
        headline=(_headline(found), told),
        new=cards(new),
        gone=cards(gone),
        changes=changes and Table(("hosts", "fact", "before", "after"), changes),
        pages=pages((*new, *gone), options),
    )


def _headline(found: Difference) -> Count:
    if found.is_empty:
        return Count("Nothing changed", "ok")
    gravest = max((one.severity for one in found.diagnoses.new), key=lambda severity: severity.rank, default=None)
    return Count("Changed", gravest.value if gravest else "ok" if found.diagnoses.gone else "info")
