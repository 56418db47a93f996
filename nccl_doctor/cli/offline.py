"""The commands that contact no host: ``hosts``, ``diff``, ``explain`` and ``codes``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import FileOptions, HostOptions, JobOptions, flattened
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.errors import UsageError

if TYPE_CHECKING:
    from nccl_doctor.model.register import Check


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
    verbose: Annotated[bool, options.of_report("-v", "--verbose", help="Every value, by its place.")] = False,
    filed: FileOptions,
) -> None:
    """Says which facts and diagnoses changed from A to B; exit 0 where nothing did, 1 where something did."""
    out = filed.out("diff", output)._replace(verbose=verbose)

    def work() -> int:
        from nccl_doctor.cli.snapshots import of_snapshot, read_snapshot
        from nccl_doctor.judge.from_file import difference

        old, new = read_snapshot(before), read_snapshot(after)
        found = of_snapshot(difference(old, new), (*old.cluster.nodes, *new.cluster.nodes))
        out.show(found)
        return 0 if found.is_empty else 1

    finish(out, work)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|TOPIC",
            help="NCD304, 304, port-in-use, or the error's own words; a topic as slurm; nothing: all topics.",
        ),
    ] = None,
    output: Annotated[str, options.output("explain")] = "human",
) -> None:
    """The page of one diagnosis: what it means, how we know, what to do; or that of a topic."""

    def work() -> int:
        from nccl_doctor.judge.pages import page_of, read_topic, topic_names
        from nccl_doctor.model.documents import Topic, TopicEntry, TopicList

        topics, code = topic_names(), " ".join(words or ())
        codes = code.replace(",", " ").split()
        if len(codes) > 1 and all(re.fullmatch(r"(?i:NCD)?\d{3}", each) for each in codes):
            if output != "human":
                raise UsageError(f"-o {output} holds one page; name one code, not {len(codes)}")
            for place, entry in enumerate(map(page_of, codes)):
                out.write("\n" if place else "")
                show(entry)
            return 0
        if not code.strip():
            entries = (TopicEntry(name=name, title=read_topic(name)[0]) for name in topics)
            out.show(TopicList(topics=tuple(entries)))
            return 0
        if code.strip() in topics:
            title, text = read_topic(code.strip())
            out.show(Topic(name=code.strip(), title=title, text=text))
            return 0
        show(page_of(code))
        return 0

    def show(check: Check) -> None:
        from nccl_doctor.model.documents import Page

        out.show(
            Page(code=check.code, name=check.name, severity=check.severity, category=check.category, text=check.page)
        )

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
