"""The ``nccl-doctor fix`` command, which runs the commands proposed by a check and then checks the hosts again."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import Out, exit_code, finish, write_file
from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from nccl_doctor.act.record import Journal
    from nccl_doctor.act.root import RootAccess
    from nccl_doctor.cli.run import Request
    from nccl_doctor.model.acts import FixReport, Step, StepResult
    from nccl_doctor.model.cluster import Cluster, Node
    from nccl_doctor.model.report import Report
    from nccl_doctor.snapshot.hosts import Snapshot
    from nccl_doctor.transport import Connections
    from nccl_doctor.transport.base import Transport

of_fix = typer.Option
AskSudo = Annotated[bool, of_fix("--ask-sudo", help="Ask once for the sudo password if sudo requires it on a host.")]
Yes = Annotated[
    bool, of_fix("-y", "--yes", help="Run the commands without asking. Commands that end a process are skipped.")
]


@dataclass(frozen=True)
class FixOptions:
    """Options for planning, running and undoing commands."""

    yes: Yes = False
    dry_run: Annotated[bool, of_fix("--dry-run", help="Print the plan and run nothing.")] = False
    script: Annotated[
        Path | None,
        of_fix(
            "--script",
            metavar="FILE",
            help="Run nothing, and write a shell script for each host. For example, fix.sh produces fix-node1.sh.",
        ),
    ] = None
    ask_sudo: AskSudo = False
    undo: Annotated[
        bool, of_fix("--undo", help="Undo the changes that the last run made on these hosts, after confirmation.")
    ] = False
    listed: Annotated[bool, of_fix("--list", help="With --undo, only show the runs that can be undone.")] = False


@flattened
def fix(
    *,
    which: options.HostOptions,
    wanted: FixOptions,
    output: Annotated[str, options.output("fix")] = "human",
    shown: options.ScreenOptions,
    chosen: options.SelectOptions,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.ReachOptions,
    job: options.ServerOptions,
    sudo: options.Sudo = False,
    no_smoke: options.NoSmoke = False,
    smoke_timeout: options.SmokeTimeout = 60.0,
) -> None:
    """Run the commands that nccl-doctor check proposes, after confirmation, and check the hosts again."""
    out = shown.out("fix", output)

    def work() -> int:
        from nccl_doctor.cli.run import Request, look_and_judge
        from nccl_doctor.collect.smoke.plan import SmokeLimits
        from nccl_doctor.transport import Connections

        connections = Connections(reached.transport)
        request = Request(
            which=which,
            chosen=chosen,
            timeout_s=timeout,
            reached=reached,
            overrides=job.overrides(),
            sudo=sudo,
            smoke=not no_smoke,
            smoke_limits=SmokeLimits(deadline_s=smoke_timeout, budget_s=1.0, plateau=True),
            isolate=True,
            connections=connections,
        )
        if wanted.listed:
            return _list(wanted)
        with closing(connections):
            if wanted.undo:
                return _Fix(request, connections, wanted, out, request.cluster()).take_back()
            # `fix` is called for a known fault, and with most faults no all-reduce runs
            judged = look_and_judge(replace(request, import_ahead=False), chosen.codes(), out)
            if judged.interrupted:
                raise KeyboardInterrupt
            return mend(request, connections, wanted, out, judged.snapshot, judged.report)

    finish(out, work)


def mend(
    request: Request, connections: Connections, wanted: FixOptions, out: Out, snapshot: Snapshot, report: Report
) -> int:
    """Run the chosen commands over the connections of the check, and return the exit code.

    The hosts are then checked again over new connections.
    """
    return _Fix(request, connections, wanted, out, snapshot.cluster).mend(snapshot, report)


def _list(wanted: FixOptions) -> int:
    """Print the runs that can be undone; return 0 if there are any, otherwise 1."""
    from nccl_doctor.act.record import all_open, describe

    if not wanted.undo:
        raise UsageError("--list, which lists the runs that can be undone, requires --undo")
    lines = describe(all_open(os.environ))
    sys.stdout.write("".join(f"{clean(line)}\n" for line in lines) or "No run can be undone.\n")
    return int(not lines)


class _Fix:
    """A run of ``fix`` on a cluster's hosts. The steps are planned and run in nccl_doctor/act."""

    def __init__(
        self, request: Request, connections: Connections, wanted: FixOptions, out: Out, cluster: Cluster
    ) -> None:
        from nccl_doctor.inventory.last_check import Hosts

        self._request, self._connections, self._wanted, self._out = request, connections, wanted, out
        self._cluster = cluster
        self._hosts = Hosts.named(request.which.hosts, cluster)
        self._interrupted = False
        self._of_root: set[str] = set()

    def mend(self, snapshot: Snapshot, report: Report) -> int:
        """Run the commands that a report proposes, and return the exit code of ``fix``."""
        from nccl_doctor.act.outcome import exit_code as code_of_run
        from nccl_doctor.act.plan import plan
        from nccl_doctor.model.acts import FixReport
        from nccl_doctor.snapshot.system import Identity

        steps, by_hand = plan(report, snapshot, self._out.hidden)
        facts = {host.name: host.facts.identity for host in snapshot.reached if host.facts is not None}
        self._of_root = {name for name, it in facts.items() if isinstance(it, Identity) and it.uid == 0}
        document = FixReport(plan=steps, by_hand=by_hand, before=report.diagnoses, verdict=_verdict(report))
        if self._is_only_shown(document):
            return exit_code(report, self._out.fail_on)
        ran = self._run(document)
        if ran is None:
            return exit_code(report, self._out.fail_on)
        ran, code = self._checked_again(ran)
        self._out.show(ran)
        if self._interrupted:
            self._say_interrupted(ran)
            return 130
        return code_of_run(ran, code)

    def _is_only_shown(self, document: FixReport) -> bool:
        """If nothing is to be run, write any requested scripts, show the plan, and return True."""
        if self._wanted.script is not None:
            scripts = _write_scripts(self._wanted.script, document.plan)
            none = "No script was written, because there is no command to run."
            written = f"Written: {', '.join(scripts)}." if scripts else none
            note = " ".join(filter(None, (document.note, written)))
            document = document.model_copy(update={"scripts": scripts, "note": note})
        shown = not document.plan or self._wanted.dry_run or self._wanted.script is not None
        if shown:
            self._out.show(document)
        return shown

    def take_back(self) -> int:
        """Offer to undo the steps of the last run, and return 0 if all steps have been undone."""
        from nccl_doctor.act.plan import undo_plan
        from nccl_doctor.act.record import all_open, latest, undo_line
        from nccl_doctor.model.acts import FixReport

        journal = latest(self._hosts.identifier, os.environ)
        if journal is None:
            others = all_open(os.environ)
            named = f"; the last run that can be undone: {undo_line(others[0].hosts)}" if others else ""
            raise UsageError(f"no run of fix on {self._hosts} can be undone{named}")
        record = journal.record
        steps = undo_plan(record.steps, record.file)
        document = FixReport(plan=steps, undo=True, note=f"The run of {record.began_at} on {record.hosts}.")
        if self._is_only_shown(document):
            return int(bool(steps))
        known = {node.name for node in self._cluster.nodes}
        missing = sorted({step.host for step in steps if step.host is not None} - known)
        if missing:
            raise UsageError(f"the last run was on {', '.join(missing)}; name the same hosts again")
        ran = self._run(document, undoing=journal)
        if ran is None:
            return 1
        back = {step.number: step.takes_back for step in steps}
        try:
            for result in ran.results:
                number = back[result.number]
                if number is not None and (result.over or result.outcome == "changed"):
                    journal.mark(number, undone=result.over, left=not result.over)
        except DoctorError as error:  # the next undo looks, and finds that nothing is left to be done
            ran = ran.model_copy(update={"note": f"The record could not be updated: {clean(str(error))}."})
        self._out.show(ran)
        if self._interrupted:
            self._say_interrupted(ran)
            return 130
        return 0 if all(result.over for result in ran.results) else 1

    def _run(self, document: FixReport, undoing: Journal | None = None) -> FixReport | None:
        """Ask which steps to run, run them, and return the results, or None if no step was chosen."""
        from nccl_doctor.act import record
        from nccl_doctor.act.run import Execution
        from nccl_doctor.cli.progress import progress

        transport = self._connections.to(self._cluster)
        lines = progress(quiet=self._out.quiet)
        try:
            roots = self._roots(document.plan, transport, lines.phase)
            document, refused = self._without_root(document, roots)
            allowed = [step for step in document.plan if step.number not in refused]
            lines.close()
            chosen = self._choose(document, allowed)
            if chosen is None:
                return None
            password = self._password(chosen, roots)
            journal = None
            if undoing is None:
                journal = record.Journal.begin(self._hosts.identifier, str(self._hosts), self._hosts.file, os.environ)
            file = self._hosts.file if undoing is None else undoing.record.file
            lines = progress(quiet=self._out.quiet)
            hosts = sorted({step.host for step in chosen if step.host is not None})
            if hosts:
                lines.phase("running", hosts)
            nodes = {node.name: node for node in self._cluster.nodes}
            by_us = partial(_by_us, nodes=nodes, transport=transport, file=file, journal=journal)
            execution = Execution(nodes, transport, roots, by_us, journal, password, lines.done)
            results = [*execution.run(chosen), *refused.values()]
            self._interrupted = execution.stop.is_set()
        finally:
            lines.close()
        kept = journal is not None and journal.record.is_open
        update = {
            "results": tuple(sorted(results, key=lambda result: result.number)),
            "note": "",
            "verdict": "",
            "undo_with": record.undo_line(str(self._hosts)) if kept else "",
        }
        return document.model_copy(update=update)

    def _roots(
        self, steps: Sequence[Step], transport: Transport, phase: Callable[[str, list[str]], None]
    ) -> dict[str | None, RootAccess]:
        from nccl_doctor.act.root import LOGIN, RootAccess, root_access
        from nccl_doctor.crew.parallel import fan_out

        places = {step.host: step.outside for step in reversed(steps) if step.root and step.host is not None}
        # the shell that is started as root reports whether it is root
        known: dict[str | None, RootAccess] = {
            name: LOGIN for name in self._of_root & places.keys() if not places[name]
        }
        nodes = [node for node in self._cluster.nodes if node.name in places.keys() - known.keys()]
        if not nodes:
            return known
        phase("root access", [node.name for node in nodes])
        accesses = fan_out(lambda node: root_access(transport, node, outside=places[node.name]), nodes)
        return known | {
            node.name: RootAccess("none", reason=str(access)) if isinstance(access, Exception) else access
            for node, access in zip(nodes, accesses, strict=True)
        }

    def _without_root(
        self, document: FixReport, roots: Mapping[str | None, RootAccess]
    ) -> tuple[FixReport, dict[int, StepResult]]:
        """Return the plan with a note on hosts without root access, and the results of the steps that can't be run."""
        from nccl_doctor.model.acts import StepResult
        from nccl_doctor.text.hostlist import fold, grouped

        refused: dict[int, StepResult] = {}
        for step in document.plan if roots else ():
            access = roots.get(step.host) if step.root else None
            why = "" if access is None or access.way != "none" else access.reason
            if access is not None and access.way == "password" and not self._wanted.ask_sudo:
                why = "sudo asks for a password there (--ask-sudo)"
            if why:
                known = {"number": step.number, "host": step.host, "reason": f"it needs root: {why}"}
                refused[step.number] = StepResult(outcome="not-run", **known)
        reasons = grouped((result.reason, result.host or "") for result in refused.values())
        notes = [f"{fold(dict.fromkeys(hosts))}: left out; {reason}." for reason, hosts in reasons.items()]
        note = " ".join(filter(None, (document.note, *notes)))
        return document.model_copy(update={"note": note}), refused

    def _choose(self, document: FixReport, steps: Sequence[Step]) -> list[Step] | None:
        """Return the chosen steps; if no step is to be run, show the reason and return None."""
        safe = [step for step in steps if step.risk == "safe"]
        why = ""
        if not steps:
            why = "No command can be run."
        elif self._wanted.yes and not safe:
            why = "Nothing was run: --yes runs no disruptive command; without --yes, fix asks about each command."
        elif not self._wanted.yes and not sys.stdin.isatty():
            why = "Nothing was run: there is no terminal to ask on. --yes runs all commands that end no process."
        if why:
            self._out.show(document.model_copy(update={"note": " ".join(filter(None, (document.note, why)))}))
            return None
        return safe if self._wanted.yes else self._ask_for(document, steps, safe)

    def _ask_for(self, document: FixReport, steps: Sequence[Step], safe: Sequence[Step]) -> list[Step] | None:
        """Show the plan on stderr and ask which steps to run; ask about each disruptive step separately."""
        from nccl_doctor.report.fix import groups, plan_screen, question
        from nccl_doctor.report.render import RenderOptions

        screen = RenderOptions(self._out.colored, self._out.width, self._out.verbose)
        hidden = self._out.hidden(document)
        note = f"\n{clean(hidden.note)}\n" if hidden.note else ""
        sys.stderr.write(f"{plan_screen(hidden, screen)}{note}\n")
        answer = _ask(question(steps), ("y", "s"))
        chosen: list[Step] = []
        if answer == "y":
            chosen = list(safe)
        elif answer == "s":
            for group in groups(safe):
                chosen += group.steps if _ask(f"{group.title}: run it? [y/N] ", ("y",)) else ()
        for step in (step for step in steps if step.risk == "disruptive" and answer):
            if _ask(f"{step.mends}: disruptive: {clean(step.command)}: run it? [y/N] ", ("y",)):
                chosen.append(step)
        if not chosen:
            sys.stderr.write("Nothing was run.\n")
            return None
        return sorted(chosen, key=lambda step: step.number)

    def _password(self, steps: Sequence[Step], roots: Mapping[str | None, RootAccess]) -> bytes | None:
        """Ask for the sudo password if a step needs it. The prompt names the hosts that receive the password."""
        hosts = {step.host: roots[step.host].way for step in steps if step.root and step.host in roots}
        wanting = [host for host, way in hosts.items() if host is not None and way == "password"]
        if not wanting:
            return None
        import getpass
        import warnings

        from nccl_doctor.text.hostlist import fold

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", getpass.GetPassWarning)  # it would read another file, with an echo
                return getpass.getpass(f"Password for sudo on {fold(wanting)}: ").encode()
        except (EOFError, getpass.GetPassWarning):
            raise UsageError("--ask-sudo asks for the password on a terminal, and there is none") from None

    def _checked_again(self, ran: FixReport) -> tuple[FixReport, int]:
        """Check the hosts again, add the results to the report of the run, and return the report and the exit code."""
        from nccl_doctor.act.outcome import compared
        from nccl_doctor.cli.run import look_and_judge

        if self._interrupted:
            return ran.model_copy(update={"complete": False}), 130
        try:
            # a file is read again, since the run may have written into it; what came through a pipe is gone;
            # over the standing connections it would not notice that no other can be opened any more
            known = None if self._hosts.file else self._cluster
            request = replace(self._request, line=(), known=known, connections=None)
            judged = look_and_judge(request, self._request.chosen.codes(), self._out)
            self._interrupted = judged.interrupted
        except KeyboardInterrupt:
            self._interrupted = True
        except DoctorError as error:
            note = f"The check after the run failed: {clean(str(error))}"
            return ran.model_copy(update={"complete": False, "note": note}), 1
        if self._interrupted:
            return ran.model_copy(update={"complete": False, "note": "The check after the run was interrupted."}), 130
        result, report = compared(ran, judged.report), judged.report
        return result.model_copy(update={"verdict": _verdict(report)}), exit_code(report, self._out.fail_on)

    def _say_interrupted(self, ran: FixReport) -> None:
        from nccl_doctor.report.fix import interrupted

        sys.stderr.write(clean(interrupted(ran)) + "\n")


def _by_us(
    step: Step, *, nodes: Mapping[str, Node], transport: Transport, file: str | None, journal: Journal | None
) -> StepResult:
    """Run a step that needs no shell: end a job, or set variables in the hosts file."""
    from nccl_doctor.act.jobs import end_job, set_variables
    from nccl_doctor.model.operations.programs import EndJob

    if isinstance(step.operation, EndJob):
        return end_job(step, step.operation, nodes[step.operation.host], transport)
    assert file is not None, "variables are written into a hosts file"
    return set_variables(step, file, journal)


def _verdict(report: Report) -> str:
    from nccl_doctor.report.human import verdict

    worst = max(report.diagnoses, key=lambda diagnosis: diagnosis.severity.rank, default=None)
    return verdict(report, worst)[2]


def _ask(text: str, answers: tuple[str, ...]) -> str:
    """Ask on the terminal, and return the answer's first letter if it is in ``answers``, otherwise "".

    Input that was typed before the question is discarded.
    """
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    sys.stderr.write(text)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    return answer[:1] if answer and any(full.startswith(answer) for full in _full(answers)) else ""


def _full(answers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({"y": "yes", "s": "select"}[answer] for answer in answers)


def _write_scripts(file: Path, steps: Sequence[Step]) -> tuple[str, ...]:
    from nccl_doctor.report.fix import script_of
    from nccl_doctor.text.hostlist import grouped

    written = []
    for host, host_steps in grouped((step.host, step) for step in steps).items():
        place = host if host is not None else "this-machine"
        path = file.with_name(f"{file.stem}-{place}{file.suffix or '.sh'}")
        with suppress(FileNotFoundError):
            if path.lstat().st_uid != os.geteuid():
                raise UsageError(f"--script: {path} belongs to another user, who could change what root runs from it")
        write_file(path, script_of(host, host_steps), private=True)
        with suppress(OSError):
            path.chmod(0o700)
        written.append(str(path))
    return tuple(written)
