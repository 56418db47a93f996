"""Renders the output of ``fix``: the plan that the user confirms, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_doctor.model.acts import ByHand, FixReport, Step, StepResult
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import Screen, joined, wrap
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.shell import clean, pasteable

_FEW = 3  # hosts with commands of one kind that are all shown
_MOST_BY_HAND = 12


def render(report: FixReport, options: RenderOptions) -> str:
    """Return the steps that were run and their results, or the plan if nothing was run."""
    screen = Screen.of(options)
    if report.results:
        return joined(_outcome(report, screen))
    blocks = list(plan_blocks(report, screen))
    texts = (report.note, "" if report.plan else report.verdict)
    return joined([*blocks, *(wrap(text, screen.prose) for text in texts if text)])


def plan_screen(report: FixReport, options: RenderOptions) -> str:
    """Return the plan that is shown before the user is asked for confirmation."""
    return joined(plan_blocks(report, Screen.of(options)))


class StepGroup:
    """Steps for one diagnosis that differ only in host-specific values."""

    def __init__(self, number: int, steps: Sequence[Step]) -> None:
        self.number, self.steps = number, tuple(steps)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the steps, without duplicates and without this machine."""
        return tuple(dict.fromkeys(step.host for step in self.steps if step.host is not None))

    @property
    def title(self) -> str:
        """The diagnosis and the hosts, such as ``firewall-blocks-port (NCD301) on node[1-2]``."""
        first = self.steps[0]
        place = f"on {fold(self.hosts)}" if self.hosts else "on this machine"
        return f"{first.mends} ({first.code}) {place}{f', {first.place}' if first.place else ''}"


def groups(steps: Sequence[Step]) -> list[StepGroup]:
    """Return a plan's steps grouped by diagnosis, place, user and risk, in the order of the plan."""
    alike = grouped(((act.code, act.mends, act.host is None, act.place, act.root, act.risk), act) for act in steps)
    return [StepGroup(number, tuple(each)) for number, each in enumerate(alike.values(), 1)]


def plan_blocks(report: FixReport, screen: Screen) -> Iterator[list[str]]:
    """Yield the blocks of the plan: each group of steps, and the steps to do by hand."""
    if not report.plan:
        left = any(item.commands for item in report.by_hand)
        nothing = "There is no command that fix can run." if left else "There is no command to run."
        yield ["Nothing can be undone." if report.undo else nothing]
    else:
        yield [f"{'Undo' if report.undo else 'Plan'}: {_counted(report.plan)}"]
    for group in groups(report.plan):
        yield list(_group(group, screen, undo=report.undo))
    if report.by_hand:
        yield list(_by_hand(report.by_hand, screen))


def _group(group: StepGroup, screen: Screen, *, undo: bool) -> Iterator[str]:
    first = group.steps[0]
    marks = ["as root"] if first.root else []
    marks += ["disruptive"] if first.risk == "disruptive" else []
    title = " ".join(filter(None, (group.title, f"({', '.join(marks)})" if marks else "")))
    yield from wrap(title, screen.prose, f"{group.number:>2}  ")
    yield from wrap(first.message, screen.prose, "    ") if first.message else ()
    by_host = grouped((step.host, step) for step in group.steps)
    alike = grouped((tuple(step.command for step in steps), host) for host, steps in by_host.items())
    kinds = grouped(
        (tuple(_kind(step) for step in by_host[hosts[0]]), (commands, hosts)) for commands, hosts in alike.items()
    )
    for same in kinds.values():
        shown = same if screen.verbose or len(same) <= _FEW else same[:1]
        for commands, hosts in shown:
            if len(alike) > 1:
                names = [host for host in hosts if host is not None]
                yield f"    {fold(names)}:"
            for command in commands:
                hidden = "(a command that a terminal can't show; see -o json)"
                yield f"      {command if pasteable(command) else hidden}"
        if len(shown) < len(same):
            others = fold([host for _, hosts in same[1:] for host in hosts if host is not None])
            yield from wrap(
                f"{others}: the same, each with its own peers' addresses; -v shows them", screen.prose, "    "
            )
    yield from () if undo else wrap(_way_back(group.steps), screen.prose, "    ")


def _kind(step: Step) -> str:
    """Return a key that is the same for steps that differ only in the addresses of peers."""
    return step.command if step.operation is None else step.operation.kind


def _way_back(steps: Sequence[Step]) -> str:
    backs = [step.undo is not None for step in steps]
    back = "Can be undone" if all(backs) else "Can be partly undone" if any(backs) else "Can't be undone"
    survives = {step.survives_reboot for step in steps if step.survives_reboot is not None}
    how = "; survives a reboot" if survives == {True} else "; is lost after a reboot" if survives == {False} else ""
    return f"{back}{how}."


def _by_hand(left: Sequence[ByHand], screen: Screen) -> Iterator[str]:
    yield "By hand:"
    shown = left if screen.verbose else left[:_MOST_BY_HAND]
    for entry in shown:
        where = f" on {fold(entry.hosts)}" if entry.hosts else ""
        yield from wrap(f"{entry.name} ({entry.code}){where}: {entry.summary}", screen.prose, "  ", "    ")
        for command, hosts in grouped((each.command, each.host) for each in entry.commands).items():
            names = [host for host in hosts if host is not None]
            if pasteable(command):
                yield f"      {f'{fold(names)}: ' if names else ''}{command}"
    if len(shown) < len(left):
        yield f"  … and {len(left) - len(shown)} more (shown with -v)"


def question(steps: Sequence[Step]) -> str:
    """Return the question to ask before anything is run, such as ``Run 12 commands on 6 hosts? [y/N/s(elect)] ``."""
    return f"Run {_counted(steps)}? [y/N/s(elect)] "


def _counted(steps: Sequence[Step]) -> str:
    hosts = {step.host for step in steps if step.host is not None}
    where = f"on {plural(len(hosts), 'host')}" if hosts else "on this machine"
    return f"{plural(len(steps), 'command')} {where}"


def _outcome(report: FixReport, screen: Screen) -> Iterator[list[str]]:
    done = [run for run in report.results if run.outcome == "done"]
    hosts = {run.host for run in report.results if run.host is not None}
    where = f" on {plural(len(hosts), 'host')}" if hosts else ""
    yield wrap(f"{len(done)} of {plural(len(report.results), 'command')} succeeded{where}.", screen.prose)
    steps = {step.number: step for step in report.plan}
    yield [line for run in report.results if run.outcome != "done" for line in _failed(run, steps[run.number], screen)]
    if screen.verbose:
        yield [f"  {step.host or 'this machine'}: {clean(step.command)}" for step in report.plan]
    still = {fault.name for fault in report.remaining}
    yield [
        line for run in done if steps[run.number].mends in still for line in _printed(run, steps[run.number], screen)
    ]
    rows = (
        ("New", report.new),
        ("Still there", report.remaining),
        ("Can't be judged any more", report.unjudged),
        ("Fixed", report.mended),
    )
    yield [
        line
        for name, faults in rows
        if faults
        for line in wrap(f"{name}: {'; '.join(map(str, faults))}", screen.prose, "", "  ")
    ]
    if report.note:
        yield wrap(report.note, screen.prose)
    if report.verdict:
        yield wrap(report.verdict, screen.prose)
    if report.undo_with:
        yield [f"To undo it:  {report.undo_with}"]


_OUTCOMES = {
    "failed": "failed",
    "unknown": "has an unknown outcome",
    "not-run": "was not run",
    "changed": "was left alone",
}


def _failed(result: StepResult, step: Step, screen: Screen) -> Iterator[str]:
    status = f" (exit status {result.exit_code})" if result.exit_code and not result.reason else ""
    why = f": {result.reason}" if result.reason else ""
    yield from wrap(f"{result.host or 'this machine'}: a step {_OUTCOMES[result.outcome]}{status}{why}", screen.prose)
    yield from _printed(result, step, screen)


def _printed(result: StepResult, step: Step, screen: Screen) -> Iterator[str]:
    yield f"  {clean(step.command)}"
    for line in result.output.splitlines()[-4:]:
        yield from wrap(line, screen.prose, "    ")


def interrupted(report: FixReport) -> str:
    """Return the message that is shown after Ctrl-C.

    The message lists the changed and the unchanged hosts, and the command that undoes the changes.
    """
    changed = grouped((run.host, run) for run in report.results if run.outcome != "not-run" and not run.was_there)
    named = [f"{host or 'this machine'} was changed ({plural(len(runs), 'command')})" for host, runs in changed.items()]
    hosts = dict.fromkeys(run.host or "this machine" for run in report.results if run.host not in changed)
    others = [f"{fold(hosts)} {'was' if len(hosts) == 1 else 'were'} not"] if hosts else []
    undo = f"; to undo it: {report.undo_with}" if report.undo_with else ""
    return f"interrupted: {', '.join((*named, *others))}{undo}"


def script_of(host: str | None, steps: Sequence[Step]) -> str:
    """Return a shell script with the steps for one host.

    The commands are the same as in the printed plan. Commands that can't be pasted, and edits to the hosts file, become
    comments.
    """
    place = "this machine" if host is None else host
    root = ", as root" if any(step.root for step in steps) else ""
    lines = ["#!/bin/sh", f"# Commands of nccl-doctor for {clean(place)}; run them there{root}.", "set -e"]
    for step in steps:
        lines.append(f"# {step.mends} ({step.code})")
        # an edit of the hosts file is not a shell command
        lines.append(f"# {clean(step.command)}" if step.settings or not pasteable(step.command) else step.command)
    return "\n".join(lines) + "\n"
