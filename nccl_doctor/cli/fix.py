"""``nccl-doctor fix``: run the commands that a check proposes, after one answer, and check again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import flattened
from nccl_doctor.cli.output import Out, finish, write_file
from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from nccl_doctor.cli.run import Request
    from nccl_doctor.collect.mending.root import RootAccess
    from nccl_doctor.model.cluster import Cluster
    from nccl_doctor.model.mending import FixReport, Step, StepResult
    from nccl_doctor.model.report import Report
    from nccl_doctor.snapshot.hosts import Snapshot

of_fix = typer.Option
AskSudo = Annotated[bool, of_fix("--ask-sudo", help="Ask once for the sudo password, for hosts where sudo needs one.")]
Yes = Annotated[bool, of_fix("-y", "--yes", help="Run the safe commands without asking; never disruptive ones.")]


@dataclass(frozen=True)
class FixOptions:
    """Options for the plan."""

    yes: Yes = False
    dry_run: Annotated[bool, of_fix("--dry-run", help="Print the plan and run nothing.")] = False
    script: Annotated[
        Path | None,
        of_fix("--script", metavar="FILE", help="Write a shell script for each host, FILE-HOST, and run nothing."),
    ] = None
    ask_sudo: AskSudo = False
    undo: Annotated[bool, of_fix("--undo", help="Undo what the last run changed on these hosts.")] = False


@flattened
def fix(
    *,
    which: options.HostOptions,
    wanted: FixOptions,
    output: Annotated[str, options.output("fix")] = "human",
    shown: options.ReportOptions,
    chosen: options.SelectOptions,
    timeout: options.TimeoutWithSmoke = None,
    reached: options.ReachOptions,
    job: options.EngineOptions,
    sudo: options.Sudo = False,
    no_smoke: options.NoSmoke = False,
    smoke_timeout: options.SmokeTimeout = 60.0,
) -> None:
    """Run the commands that check proposes, after one answer, and check again."""
    out = shown.out("fix", output)

    def work() -> int:
        from nccl_doctor.cli.run import Request, look_and_judge
        from nccl_doctor.collect.smoke.plan import SmokeLimits

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
        )
        if wanted.undo:
            return _Mender(request, wanted, out, request.cluster()).take_back()
        # `fix` is called for a known fault, and with most faults no all-reduce runs
        snapshot, report = look_and_judge(replace(request, import_ahead=False), chosen.codes(), out)
        return mend(request, wanted, out, snapshot, report)

    finish(out, work)


def mend(request: Request, wanted: FixOptions, out: Out, snapshot: Snapshot, report: Report) -> int:
    """Plan, ask, run and check again; return the exit code."""
    return _Mender(request, wanted, out, snapshot.cluster).mend(snapshot, report)


class _Mender:
    """A run of ``fix`` over the hosts of a cluster."""

    def __init__(self, request: Request, wanted: FixOptions, out: Out, cluster: Cluster) -> None:
        from nccl_doctor.launch.launched import Hosts

        self._request, self._wanted, self._out, self._cluster = request, wanted, out, cluster
        self._hosts = Hosts.named(request.which.hosts, cluster)
        self._settings_before: dict[str, str | None] = {}
        self._interrupted = False
        self._of_root: set[str] = set()

    def mend(self, snapshot: Snapshot, report: Report) -> int:
        """Run what a report's diagnoses propose; return 0 if all that was chosen is mended."""
        from nccl_doctor.judge.fix_plan import all_mended, plan
        from nccl_doctor.model.finding import Severity
        from nccl_doctor.model.mending import FixReport
        from nccl_doctor.snapshot.system import Identity

        steps, by_hand = plan(report, snapshot)
        facts = {host.name: host.facts.identity for host in snapshot.reached if host.facts is not None}
        self._of_root = {name for name, it in facts.items() if isinstance(it, Identity) and it.uid == 0}
        document = FixReport(plan=steps, by_hand=by_hand, before=report.diagnoses, verdict=_verdict(report))
        grave = any(found.severity is Severity.ERROR for found in report.diagnoses)
        if self._wanted.script is not None:
            document = document.model_copy(update={"scripts": _write_scripts(self._wanted.script, steps)})
            written = ", ".join(document.scripts) or "no script: there is no command"
            document = document.model_copy(update={"note": f"Written: {written}."})
        if not steps or self._wanted.dry_run or self._wanted.script is not None:
            self._out.show(document)
            return int(grave or bool(steps))
        ran = self._run(document)
        if ran is None:
            return 1
        ran = self._checked_again(ran)
        self._out.show(ran)
        if self._interrupted:
            self._say_interrupted(ran)
            return 130
        return 0 if all_mended(ran) else 1

    def take_back(self) -> int:
        """Offer to undo the last run's steps; return 0 if all of them were undone."""
        from nccl_doctor.collect.mending.record import latest, mark_undone
        from nccl_doctor.judge.fix_plan import undo_plan
        from nccl_doctor.model.mending import FixReport

        found = latest(self._hosts.identifier, os.environ)
        if found is None:
            raise UsageError(f"no run of fix on {self._hosts} can be undone")
        path, record = found
        steps = undo_plan([step.parts() for step in record.steps if not step.undone], record.file)
        document = FixReport(plan=steps, undo=True, note=f"The run of {record.began_at} on {record.hosts}.")
        if not steps or self._wanted.dry_run:
            self._out.show(document)
            return int(bool(steps))
        known = {node.name for node in self._cluster.nodes}
        missing = sorted({step.host for step in steps if step.host is not None} - known)
        if missing:
            raise UsageError(f"the last run was on {', '.join(missing)}; name the same hosts again")
        ran = self._run(document, back=record.settings_before)
        if ran is None:
            return 1
        done = {result.number for result in ran.results if result.outcome == "done"}
        # what has changed since then belongs to somebody else
        over = {result.number for result in ran.results if result.outcome in ("done", "changed")}
        mark_undone(path, record, [step.takes_back for step in steps if step.number in over and step.takes_back])
        self._out.show(ran)
        if self._interrupted:
            self._say_interrupted(ran)
            return 130
        return 0 if len(done) == len(steps) else 1

    def _run(self, document: FixReport, back: Mapping[str, str | None] | None = None) -> FixReport | None:
        """Ask, and run what was chosen; return None if nothing was, after saying so."""
        from nccl_doctor.cli.progress import progress
        from nccl_doctor.collect.mending import record
        from nccl_doctor.collect.mending.steps import Mending
        from nccl_doctor.transport import make_transport

        transport = make_transport(self._request.reached.transport, self._cluster)
        lines = progress(quiet=self._out.quiet)
        try:
            roots = self._roots(document.plan, transport, lines.phase)
            document, refused = self._without_root(document, roots)
            allowed = [step for step in document.plan if step.number not in refused]
            lines.close()
            chosen = self._choose(document, allowed)
            if chosen is None:
                return None
            file = self._hosts.file
            kept = (
                record.begin(self._hosts.identifier, str(self._hosts), chosen, file, os.environ)
                if back is None
                else None
            )
            password = self._password(chosen, roots)
            lines = progress(quiet=self._out.quiet)
            hosts = sorted({step.host for step in chosen if step.host is not None})
            if hosts:
                lines.phase("running", hosts)
            mending = Mending({node.name: node for node in self._cluster.nodes}, transport, roots, password, lines.done)
            results = [self._set(step, back) for step in chosen if step.settings]
            results += mending.run([step for step in chosen if not step.settings])
            self._interrupted = mending.stop.is_set()
        finally:
            lines.close()
            transport.close()
        steps = {step.number: step for step in document.plan}
        if kept is not None:
            record.finish(*kept, ((steps[result.number], result) for result in results), self._settings_before)
        results += refused.values()
        return document.model_copy(
            update={"results": tuple(sorted(results, key=lambda one: one.number)), "note": "", "verdict": ""}
        )

    def _roots(
        self, steps: Sequence[Step], transport: object, phase: Callable[[str, list[str]], None]
    ) -> dict[str | None, RootAccess]:
        """Return how to become root on each host whose steps need it."""
        from nccl_doctor.collect.connect.parallel import fan_out
        from nccl_doctor.collect.mending.root import root_access

        places = {step.host: step.place for step in reversed(steps) if step.root and step.host is not None}
        # the shell that is started as root reports whether it is root
        known: dict[str | None, RootAccess] = {
            name: "login" for name in self._of_root & places.keys() if not places[name]
        }
        nodes = [node for node in self._cluster.nodes if node.name in places.keys() - known.keys()]
        if not nodes:
            return known
        phase("root access", [node.name for node in nodes])
        found = fan_out(lambda node: root_access(transport, node, places[node.name]), nodes)  # type: ignore[arg-type]
        return known | {
            node.name: str(way) if isinstance(way, Exception) else way for node, way in zip(nodes, found, strict=True)
        }

    def _without_root(
        self, document: FixReport, roots: Mapping[str | None, RootAccess]
    ) -> tuple[FixReport, dict[int, StepResult]]:
        """Return the plan with a note about hosts without a way to become root, and the results of their steps."""
        from nccl_doctor.model.mending import StepResult
        from nccl_doctor.text.hostlist import fold, grouped

        def why(way: RootAccess | None) -> str:
            if way == "password" and not self._wanted.ask_sudo:
                return "sudo asks for a password there (--ask-sudo)"
            return "" if way in ("login", "sudo", "password") else str(way)

        refused = {
            step.number: StepResult(
                number=step.number,
                host=step.host,
                outcome="not-run",
                reason=f"it needs root: {why(roots.get(step.host))}",
            )
            for step in document.plan
            if step.root and why(roots.get(step.host))
        }
        reasons = grouped((one.reason, one.host or "") for one in refused.values())
        notes = [f"{fold(dict.fromkeys(hosts))}: left out; {reason}." for reason, hosts in reasons.items()]
        note = " ".join(filter(None, (document.note, *notes)))
        return document.model_copy(update={"note": note}), refused

    def _choose(self, document: FixReport, steps: Sequence[Step]) -> list[Step] | None:
        """Return the steps that were chosen; None if nothing is to be run, after showing why."""
        safe = [step for step in steps if step.risk == "safe"]
        why = ""
        if not steps:
            why = "No command can be run."
        elif self._wanted.yes and not safe:
            why = "Nothing was run: no command is safe, and --yes runs no others."
        elif not self._wanted.yes and not sys.stdin.isatty():
            why = "Nothing was run: there is no terminal to ask on. --yes runs the safe commands."
        if why:
            self._out.show(document.model_copy(update={"note": " ".join(filter(None, (document.note, why)))}))
            return None
        return safe if self._wanted.yes else self._ask_for(document, steps, safe)

    def _ask_for(self, document: FixReport, steps: Sequence[Step], safe: Sequence[Step]) -> list[Step] | None:
        """Show the plan on stderr and ask; ask for each disruptive step separately."""
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
        """Ask for the password if a chosen step needs it."""
        if not any(step.root and roots.get(step.host) == "password" for step in steps):
            return None
        import getpass

        try:
            return getpass.getpass("sudo password for the hosts: ").encode()
        except EOFError:
            raise UsageError("--ask-sudo asks for the password on a terminal, and there is none") from None

    def _set(self, step: Step, back: Mapping[str, str | None] | None) -> StepResult:
        """Write variables into the hosts file, or restore their earlier values."""
        from datetime import datetime, timezone

        from nccl_doctor.inventory.edits import write_env
        from nccl_doctor.model.mending import StepResult

        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        assert self._hosts.file is not None
        wanted: dict[str, str | None] = (
            {**step.settings} if back is None else {name: back[name] for name in step.settings}
        )
        try:
            before = write_env(self._hosts.file, wanted)
        except DoctorError as error:
            return StepResult(number=step.number, host=None, outcome="failed", reason=clean(str(error)), at=at)
        if back is None:
            self._settings_before |= {
                name: value for name, value in before.items() if name not in self._settings_before
            }
        return StepResult(number=step.number, host=None, outcome="done", exit_code=0, at=at)

    def _checked_again(self, ran: FixReport) -> FixReport:
        """Return the run with the diagnoses after it, compared with those before."""
        from nccl_doctor.cli.run import look_and_judge
        from nccl_doctor.judge.fix_plan import compared
        from nccl_doctor.model.finding import Severity

        if self._interrupted:
            return ran.model_copy(update={"complete": False})
        try:
            request = replace(self._request, line=())
            _, report = look_and_judge(request, self._request.chosen.codes(), self._out)
        except KeyboardInterrupt:
            self._interrupted = True
            return ran.model_copy(update={"complete": False, "note": "The check after it was interrupted."})
        except DoctorError as error:
            return ran.model_copy(update={"complete": False, "note": f"The check after it failed: {clean(str(error))}"})
        changes = compared(ran.before, report.diagnoses, Severity.WARNING)
        update = {**changes, "after": report.diagnoses, "complete": report.complete, "verdict": _verdict(report)}
        return ran.model_copy(update=update)

    def _say_interrupted(self, ran: FixReport) -> None:
        from nccl_doctor.text.hostlist import plural

        done = sum(result.outcome == "done" for result in ran.results)
        left = sum(result.outcome == "not-run" for result in ran.results)
        sys.stderr.write(f"interrupted: {plural(done, 'command')} done, {left} not run\n")


def _verdict(report: Report) -> str:
    from nccl_doctor.report.human import verdict

    worst = max(report.diagnoses, key=lambda found: found.severity.rank, default=None)
    return verdict(report, worst)[2]


def _ask(text: str, answers: tuple[str, ...]) -> str:
    """Ask on the terminal; return the answer's first letter if it is one of these, otherwise ""."""
    sys.stderr.write(text)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    return answer[:1] if answer and any(full.startswith(answer) for full in _full(answers)) else ""


def _full(answers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({"y": "yes", "s": "select"}[answer] for answer in answers)


def _write_scripts(file: Path, steps: Sequence[Step]) -> tuple[str, ...]:
    """Write a script for each host and return their names."""
    from nccl_doctor.report.fix import script_of
    from nccl_doctor.text.hostlist import grouped

    written = []
    for host, own in grouped((step.host, step) for step in steps).items():
        place = host if host is not None else "this-machine"
        path = file.with_name(f"{file.stem}-{place}{file.suffix or '.sh'}")
        write_file(path, script_of(host, own), private=True)
        with suppress(OSError):
            path.chmod(0o700)
        written.append(str(path))
    return tuple(written)
