"""The commands that contact no host: ``hosts``, ``diff``, ``explain`` and ``codes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import FileOptions, HostOptions, JobOptions, flattened
from nccl_doctor.cli.output import Out, finish


@flattened
def hosts(
    *,
    which: HostOptions,
    job: JobOptions,
    output: Annotated[str, options.output("hosts")] = "human",
    show_secrets: options.ShowSecrets = False,
) -> None:
    """Prints hosts, addresses and ranks, and where each value came from; contacts nobody."""

    def work() -> int:
        from nccl_doctor.model.documents import HostList

        out.show(HostList(**dict(which.cluster(job.overrides()))))
        return 0

    out = Out("hosts", output, show_secrets=show_secrets)
    finish(out, work)


@flattened
def diff(
    *,
    before: Annotated[Path, typer.Argument(metavar="A", help="A snapshot that check --save wrote.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A later one.")],
    output: Annotated[str, options.output("diff")] = "human",
    filed: FileOptions,
) -> None:
    """Says which facts and diagnoses changed from A to B; exit 0 where nothing did, 1 where something did."""
    out = filed.out("diff", output)

    def work() -> int:
        from nccl_doctor.cli.snapshots import of_snapshot, read_snapshot
        from nccl_doctor.judge.from_file import difference

        old, new = read_snapshot(before), read_snapshot(after)
        found = of_snapshot(difference(old, new), (*old.cluster.nodes, *new.cluster.nodes))
        out.show(found)
        return 0 if found.is_empty else 1

    finish(out, work)


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="[CODE|TOPIC]",
            help="NCD304, 304, port-in-use, or the error's own words; a topic as slurm; nothing: all topics.",
        ),
    ] = "",
    output: Annotated[str, options.output("explain")] = "human",
) -> None:
    """The page of one diagnosis: what it means, how we know, what to do; or that of a topic."""

    def work() -> int:
        from nccl_doctor.judge.pages import page_of, read_topic, topic_names
        from nccl_doctor.model.documents import Page, Topic, TopicEntry, TopicList

        topics = topic_names()
        if not code.strip():
            entries = (TopicEntry(name=name, title=read_topic(name)[0]) for name in topics)
            out.show(TopicList(topics=tuple(entries)))
            return 0
        if code.strip() in topics:
            title, text = read_topic(code.strip())
            out.show(Topic(name=code.strip(), title=title, text=text))
            return 0
        entry = page_of(code)
        page = Page(code=entry.code, name=entry.name, severity=entry.severity, category=entry.category, text=entry.page)
        out.show(page)
        return 0

    out = Out("explain", output)
    finish(out, work)


def codes(output: Annotated[str, options.output("codes")] = "human") -> None:
    """All diagnoses, a line each."""

    def work() -> int:
        from nccl_doctor.model.documents import CodeEntry, Codes
        from nccl_doctor.model.register import all_checks

        entries = (CodeEntry(code=c.code, name=c.name, severity=c.severity, category=c.category) for c in all_checks())
        out.show(Codes(codes=tuple(sorted(entries, key=lambda entry: entry.code))))
        return 0

    out = Out("codes", output)
    finish(out, work)
