"""The plan of ``nccl-doctor fix``: the commands of a report to run, in order, and what is left to do by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from nccl_doctor.judge.changes import Change, change_of
from nccl_doctor.model.engine import ClusterSource, reaching
from nccl_doctor.model.finding import Diagnosis, Severity
from nccl_doctor.model.mending import ByHand, FixReport, Step, StepResult
from nccl_doctor.model.report import Report
from nccl_doctor.nccl.gloo import GLOO_SOCKET_IFNAME, gloo_devices_of
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.shell import word


def plan(report: Report, snapshot: Snapshot) -> tuple[tuple[Step, ...], tuple[ByHand, ...]]:
    """Return the steps that mend a report's diagnoses, gravest first, and what is left by hand."""
    steps: list[Step] = []
    by_hand: list[ByHand] = []
    boots = {host.name: host.facts.identity for host in snapshot.hosts if host.facts is not None}
    for found in sorted(report.diagnoses, key=lambda one: -one.severity.rank):
        made = list(_steps(found, snapshot))
        if made:
            known = {(one.host, one.place, one.command) for one in steps}
            steps += [one for one in made if (one.host, one.place, one.command) not in known]
        else:
            by_hand.append(_left(found))
    steps.sort(key=_applies_others)
    numbered = (
        one.model_copy(update={"number": number, "boot_id": getattr(boots.get(one.host or ""), "boot_id", None)})
        for number, one in enumerate(steps, 1)
    )
    return tuple(numbered), tuple(by_hand)


def _applies_others(step: Step) -> bool:
    change = change_of(step.command)
    return change is not None and change.last


def _left(found: Diagnosis) -> ByHand:
    summary, commands = found.fix.summary, found.fix.commands
    named = {"code": found.code, "name": found.name, "severity": found.severity, "hosts": found.hosts}
    return ByHand.model_validate(named | {"summary": summary, "commands": commands})


def _steps(found: Diagnosis, snapshot: Snapshot) -> Iterator[Step]:
    """Yield the steps of a diagnosis: all of its commands, or none."""
    fix = found.fix
    if fix.variables:
        yield from _settings(found, snapshot)
        return
    changes = [change_of(one.command) for one in fix.commands]
    if fix.risk == "manual" or not changes or None in changes:
        return
    pods = reaching(snapshot.cluster.nodes).name == "kube"
    if any((one.host is not None and pods) or (one.place or "").startswith("in ") for one in fix.commands):
        return
    for one, change in zip(fix.commands, changes, strict=True):
        assert change is not None
        undo = change.undo(()) if change.undo is not None and change.reads is None else None
        yield Step(
            number=1,
            host=one.host,
            command=one.command,
            place=one.place,
            root=change.root,
            risk="disruptive" if change.ends_process or fix.risk == "disruptive" else "safe",
            code=found.code,
            mends=found.name,
            undo=_shown(undo, change),
            survives_reboot=change.survives_reboot,
            # what the command itself prints need not be looked up before
            in_place=str(change.in_place)
            if change.in_place and change.undo and not (change.already or change.reads)
            else None,
            reads=str(change.reads) if change.reads else None,
            already=change.already,
            deadline_s=change.deadline_s,
        )


def _shown(undo: object, change: Change) -> str | None:
    if change.reads is not None:
        return "the values before it"
    return None if undo is None else str(undo)


def _settings(found: Diagnosis, snapshot: Snapshot) -> Iterator[Step]:
    """Yield the step that writes a job's variables into the hosts file, if they can be the same on all hosts."""
    file = ClusterSource(snapshot.cluster).file
    wanted = found.fix.variables
    first, *others = wanted.values()
    alike = all(each == first for each in others)
    if file is None or not alike or any(host.name not in wanted and not _idle(first, host) for host in snapshot.hosts):
        return
    words = ", ".join(f"{name}: {word(value)}" for name, value in first.items())
    yield Step(
        number=1,
        host=None,
        command=f"write into {file}, under env: {words}",
        code=found.code,
        mends=found.name,
        undo="the values before it",
        survives_reboot=True,
        settings=dict(first),
    )


def _idle(variables: Mapping[str, str], host: Host) -> bool:
    """Return whether variables would change nothing on a host: gloo takes the interface without them, too."""
    devices = gloo_devices_of(host)
    if variables.keys() != {GLOO_SOCKET_IFNAME} or not isinstance(devices, tuple):
        return False
    return [device.name for device in devices] == [variables[GLOO_SOCKET_IFNAME]]


def undo_plan(done: Sequence[tuple[Step, StepResult]], file: str | None) -> tuple[Step, ...]:
    """Return the steps that undo steps that were run, the last one first; ``file`` is the changed hosts file."""
    back: list[Step] = []
    applying: list[Step] = []
    for step, result in reversed(done):
        if result.outcome not in ("done", "unknown") or result.was_there:
            continue
        if step.settings and file is not None and result.outcome == "done":
            names = ", ".join(step.settings)
            way = {"command": f"write into {file}, under env: the values of {names} from before"}
            back.append(step.model_copy(update=way | {"takes_back": step.number}))
            continue
        change = change_of(step.command)
        undo = change.undo(result.before) if change is not None and change.undo is not None else None
        # if the end of a step was not seen, a look must show that there is something to take back
        if change is None or undo is None or (result.outcome == "unknown" and change.in_place is None):
            continue
        update = {"command": str(undo), "takes_back": step.number, "reads": None, "already": None, "undo": None}
        # what a reboot has undone is gone, as a changed boot id shows
        update["boot_id"] = step.boot_id if change.survives_reboot is False else None
        update["in_place"] = None if change.in_place is None else str(change.in_place)
        (applying if change.last else back).append(step.model_copy(update=update))
    changed = {way.host for way in back}
    ordered = (*back, *(way for way in applying if way.host in changed))
    return tuple(way.model_copy(update={"number": number}) for number, way in enumerate(ordered, 1))


def compared(before: Iterable[Diagnosis], after: Iterable[Diagnosis], least: Severity) -> Mapping[str, tuple[str, ...]]:
    """Return the names of diagnoses of severity ``least`` or higher with their hosts: mended, remaining, or new."""
    then, now = (
        {found.name: found.hosts for found in found_ if found.severity.rank >= least.rank}
        for found_ in (_joined(before), _joined(after))
    )
    return {
        "mended": tuple(f"{name} on {fold(hosts)}" for name, hosts in then.items() if name not in now),
        "remaining": tuple(f"{name} on {fold(now[name])}" for name in then if name in now),
        "new": tuple(f"{name} on {fold(hosts)}" for name, hosts in now.items() if name not in then),
    }


def _joined(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the diagnoses, with those of the same name joined."""
    together: dict[str, Diagnosis] = {}
    for found in diagnoses:
        other = together.get(found.name)
        hosts = tuple(dict.fromkeys(chain(other.hosts if other else (), found.hosts)))
        severity = max((found.severity, other.severity if other else found.severity), key=lambda one: one.rank)
        together[found.name] = found.model_copy(update={"hosts": hosts, "severity": severity})
    return list(together.values())


def all_mended(report: FixReport) -> bool:
    """Return whether every step was done and its diagnosis is gone."""
    chosen = {result.number for result in report.results}
    names = {step.mends for step in report.plan if step.number in chosen}
    still = {found.name for found in report.after or ()}
    return all(result.outcome == "done" for result in report.results) and not names & still
