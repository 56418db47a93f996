"""``nccl-doctor explain`` and ``nccl-doctor codes``."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish


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
