"""A signal from outside the job ended a process of the job.

What it means: The kernel, the scheduler (for example at a time limit), a closing terminal or a person sent a signal.
The other ranks lose their connections to the killed process.

How we know: The log contains torchrun's "exitcode: -9" for the process that failed first, "Signal 9 (SIGKILL)", exit
code 137, "CANCELLED … DUE TO TIME LIMIT", or SIGHUP. The check ignores the SIGTERM that torchrun sends to the other
workers after the first failure. SIGSEGV and SIGABRT mean that the process itself crashed.

Fix: Look for the OOM killer's messages in dmesg, and for the scheduler's messages in the output of `sacct` or `kubectl
describe`. Start long runs under tmux or as a batch job. nohup does not protect torchrun, which handles SIGHUP itself.

References: signal(7); torch/distributed/elastic/multiprocessing/api.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import Event, Reading, label
from nccl_doctor.logs.rule import EXITED, INTERRUPTED, MEETING, TALKING, TERMINATING, Grade, generic, likelies, likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD917")


def _advice(case: Case) -> Advice:
    if case.first.wording == INTERRUPTED:
        return advise(
            f"A process of {case.who} was interrupted by Ctrl-C, or by SIGINT from its launcher.",
            "If you interrupted it because it hung: nccl-doctor hang names the rank at fault while a job hangs.",
        )
    if case.first.wording in (CRASHED, ABORTED):
        return advise(
            f"A process of {case.who} crashed in a library or an extension that it had loaded. It was not killed "
            "from outside.",
            "Start it with PYTHONFAULTHANDLER=1, which prints the Python stack of each thread; the last output of the "
            "process is in its own log.",
        )
    if "DataLoader worker" in case.first.text:
        return advise(
            f"A data loader worker of {case.who} was killed from outside, most likely by the kernel's OOM killer.",
            "See in dmesg on that host what sent the signal. Fewer workers (num_workers) need less host memory.",
        )
    lost = next((match for event in case.cause.events if (match := _NODE_FAILED.search(event.text))), None)
    if lost is not None:
        node = lost["host"] or "a node of the job"
        return advise(
            f"Slurm ended processes of the job because {node} failed.",
            "See Slurm's reason (scontrol show node, sinfo -R), and leave the node out (--exclude) until it is "
            "repaired.",
        )
    if any(_HUNG_UP.search(event.text) for event in case.cause.events):
        return advise(
            f"A process of {case.who} received SIGHUP, usually because its terminal or SSH session was closed.",
            "Start the job under tmux or as a batch job. nohup does not protect torchrun, which handles SIGHUP itself.",
        )
    return advise(
        f"A process of {case.who} was killed from outside: by the kernel's OOM killer, the scheduler, a time limit or "
        "a person.",
        "Find out what sent the signal: see dmesg on that host, and the scheduler (sacct, kubectl describe pod).",
    )


_NODE_FAILED = re.compile(r"DUE TO NODE FAIL|srun: error: Node failure on (?P<host>[\w.-]{0,252}\w)")
_HUNG_UP = re.compile(r"Received 1 death signal|SIGHUP|got signal: 1\b|exited on signal 1\b")

CRASHED = (
    r"(?:Segmentation fault|exitcode: -11\b|SIGSEGV|exited on signal 11|Caught signal 11"
    r"|\b(?:python|pt_|ray)\S{0,40}\[\d+\]:? (?:segfault at|general protection fault))"
)
ABORTED = r"(?:exitcode ?: -6\b|Signal 6 \(SIGABRT\))"

RULES = (
    generic(INTERRUPTED, "KeyboardInterrupt"),
    *likelies(
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?:9|15|1)\b",
        "mpirun noticed that process rank 3 with PID 4242 on node gpu02 exited on signal 9 (Killed).",
        r"(?:killed by signal: (?:Killed|Terminated)|[Ee]xit [Cc]ode: +137|User defined signal)",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.",
        r"(?:^|: |\d )Killed(?: |$|\.)",
        "run.sh: line 12: 4242 Killed                  python train.py",
        r"^(?:zsh|fish): (?:\d+ )?(?:killed|.{1,60} terminated by signal SIGKILL)\b",
        "zsh: killed     python train.py",
        r"(?:CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAIL)|[Jj]ob (?:was )?(?:preempted|evicted)|Preempted"
        r"|Evicted\b|srun: error: Node failure on)",
        "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***",
    ),
    likely(
        r"(?:exitcode: -9\b|exit ?code:? (?:-9|137)\b|The exit code is (?:-9|137)\b|[Ss]ignal:? ?\(?9(?:[ ),:]|$)"
        r"|Signal 9 \(SIGKILL\)|SIGKILL|exited on signal 9"
        r"|KILLED BY SIGNAL: 9\b|return code = -(?:9|15)\b)",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 1168) of "
        "binary: python",
        unless=r"If exit code is -9",
    ),
    likely(
        r"(?:Received (?:1|15|Signals\.SIG\w+:? ?\d*) death signal|SignalException: Process \d+ got signal: \d"
        r"|SIGHUP death signal)",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
        unless=r"Signals\.SIGINT|got signal: 2\b",
    ),
    likely(CRASHED, "Signal 11 (SIGSEGV) received by PID 4242"),
    likely(
        r"DataLoader worker \(pid\(s\) [\d, ]{1,200}\) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid(s) 1211) exited unexpectedly",
    ),
    generic(ABORTED, "failed (exitcode: -6) local_rank: 0 (pid: 4242) of binary: python"),
    generic(
        r"(?:exited on signal \d+|exitcode ?: -(?:[02-9]|1[0-46-9]?\b|15\)? ?\(?(?:pid|local_rank))"
        r"|srun: error: \S+: task\S* \S+: (?:Killed|Terminated|Bus error|Aborted|Segm|Exited with exit code 1[23]))",
        "srun: error: n1: task 3: Killed",
    ),
)

_FIRST = re.compile(r"failed \(exitcode: (?P<torchrun>-?\d{1,3})\)|exits with return code = (?P<deepspeed>-?\d{1,3})\b")
"""Pattern for exit codes in messages of torch (torch/distributed/elastic/multiprocessing/api.py) and DeepSpeed
(deepspeed/launcher/launch.py).
"""

_PID = re.compile(r"(?:\(pid: |received by PID )(\d{1,9})\b")
_ABORTED = -6


def exit_code(event: Event) -> int | None:
    """Return the exit code of the process that failed first, or None if unknown. A negative code means a signal."""
    first = _FIRST.search(event.text)
    return int(first["torchrun"] or first["deepspeed"]) if first else None


def killed(event: Event) -> bool:
    """Return whether the process that failed first was ended by a signal other than SIGABRT."""
    code = exit_code(event)
    return code is not None and code < 0 and code != _ABORTED


def blamed(events: Sequence[Event], source: Mapping[str, Reading], facts: Facts) -> list[Event]:
    others = [other for other in events if other.grade >= Grade.SYMPTOM and (exit_code(other) is None or killed(other))]
    losers: set[int | None] = {None}
    if others and all(other.name == "peer-died" for other in others):
        pairs = ((other.rank, facts.process(other.prefix)) for other in others)
        losers = {process.rank if rank is None and process is not None else rank for rank, process in pairs}
    return [_blamed(event, source[event.file], losers) for event in events]


def _blamed(event: Event, reading: Reading, losers: set[int | None]) -> Event:
    """Add the rank and host from a launcher's summary to an event.

    If only other ranks lost connections, grade the event as a likely cause.
    """
    pid, code = _PID.search(event.text), exit_code(event)
    rows = [row for row in reading.summary if pid and row.pid == pid[1] and code in (None, row.code)]
    matches = [row for row in rows if row.label == label(event.prefix)] or rows
    places = {(row.rank, row.host) for row in matches}
    rank, host = places.pop() if len(places) == 1 else (None, None)
    alone = event.grade is Grade.GENERIC and code is not None and losers.isdisjoint({None, rank})
    if rank is None or not (alone or event.name == "killed"):
        return event
    host = event.prefix.host or (None if host == "localhost" else host)
    grade = Grade.LIKELY if alone else event.grade
    return replace(event, rank=rank, grade=grade, prefix=replace(event.prefix, host=host))


_FRAME = re.compile(
    rb"\s|$|Traceback|During handling|The above exception|[\w.]*(?:Error|Exception)\b|\^|[~^ ]+$|\S+: +File |=+$|-+$"
    rb"|.{0,120}destroy_process_group\(\) was not called|wandb: |Exception ignored in|.{0,200}resource_tracker: "
)
"""Pattern for lines of stack traces, and for lines that Python, torch and experiment trackers print at exit."""

_ABOVE, _STACK, _SOON = 60, 80, 200
"""Maximum numbers of lines from an exception to a launcher's message, to the head of the traceback, and to errors of
other ranks.
"""

_ABORT = re.compile(r"exit ?code ?: -6\b|Signal 6 \(SIGABRT\)|: Aborted\b")
_ENDS_ALL = re.compile(r"Terminating (?:StepId|job step)|[Jj]ob step aborted|Force Terminated StepId|MPI_ABORT was")
_LEFT = frozenset({"collective-timeout", "peer-died"})

_OWN = re.compile(
    r"(?:^|[ .])(?:Value|Type|Key|Index|Attribute|Name|Assertion|ZeroDivision|FileNotFound|IsADirectory|Import"
    r"|NotImplemented|ModuleNotFound|UnicodeDecode|JSONDecode|EOF|Unpickling)Error\b"
)
"""Pattern for exceptions that scripts raise themselves, rather than libraries after a lost connection."""


def accused(event: Event, reading: Reading, left: set[str]) -> Event:
    """Grade an exception or a killed process. ``left`` names the logs in which ranks lost a connection or timed out."""
    if event.name not in {"killed", "script-failed"} or event.grade is Grade.CLUE:
        return event
    before = [entry for entry in reading.events if entry.line < event.line]
    # Slurm or MPI announces that it ends all: a process then killed, according to a launcher, shows no more
    if any(entry.wording == TERMINATING and _ENDS_ALL.search(entry.text) for entry in before):
        exited = any(entry.wording == EXITED for entry in before)
        grade = Grade.CLUE if exited and event.name == "killed" else event.grade
        return replace(event, grade=min(grade, Grade.GENERIC))
    if killed(event):
        return replace(event, grade=max(event.grade, Grade.LIKELY))
    notices = [entry.line for entry in reading.events if entry.wording == TERMINATING or _aborted(entry)]
    if event.name == "killed" and not _aborted(event):
        announced = any(line < event.line for line in notices) and event.wording != TERMINATING
        return replace(event, grade=min(event.grade, Grade.GENERIC)) if announced else event
    if event.grade is not Grade.HINT:
        return event
    announced = any(0 < line - event.line <= _ABOVE for line in notices)
    losses = [entry for entry in reading.events if entry.name in _LEFT and entry.grade is Grade.SYMPTOM]
    # others soon waited for it in vain; or only noise follows, and the losses belong to others
    fatal = any(0 < entry.line - event.line <= _SOON for entry in losses)
    elsewhere = (bool(left) and reading.name not in left) or _of_another(event, losses)
    fatal = fatal or (elsewhere and only_frames(reading.after(event.line)))
    has_stack = any(0 <= event.line - entry <= _STACK for entry in reading.tracebacks)
    return replace(event, grade=Grade.LIKELY) if announced or (fatal and has_stack) else event


def broken_off_after(event: Event, reading: Reading) -> bool:
    """Return whether an interrupt came after a run had ended successfully."""
    stood = (other.line > reading.well for other in reading.events if other.wording in (MEETING, TALKING))
    return event.wording == INTERRUPTED and 0 < reading.well < event.line and not any(stood)


def _aborted(event: Event) -> bool:
    """Return whether a process ended with SIGABRT after a fault."""
    return event.name == "killed" and event.grade is Grade.GENERIC and _ABORT.search(event.text) is not None


def _of_another(event: Event, losses: list[Event]) -> bool:
    """Return whether the script itself raised an exception, while only other processes reported lost connections."""
    others = all(loss.rank is not None and label(loss.prefix) != label(event.prefix) for loss in losses)
    return bool(losses) and others and _OWN.search(event.message) is not None


def only_frames(after: list[bytes] | None) -> bool:
    """Return whether the lines after an exception are only stack traces and messages that programs print at exit."""
    return after is not None and all(_FRAME.match(line) or b'File "' in line for line in after)


def _ended(scene: Scene) -> list[Event]:
    """Grade the events so that the process that failed first counts as the cause."""
    ends = {reading.name: reading for reading in scene.log.readings}
    events = [event for event in scene.events if not broken_off_after(event, ends[event.file])]
    left = {event.file for event in events if event.name in _LEFT and event.grade is Grade.SYMPTOM}
    events = [accused(event, scene.sources[event.file], left) for event in events]
    return blamed(events, scene.sources, scene.log.facts)


def _ended_after_a_wait(scene: Scene) -> list[Event]:
    """Lower the grade of events about processes that were killed after a collective had timed out."""
    waits = [event for event in scene.events if event.name == "collective-timeout"]
    first: dict[tuple[str, bool], Event] = {}
    for event in waits:
        first.setdefault((event.file, event.prefix.time is None), event)
    # one search a file: later lines were written later
    dated = [event for event in waits if event.prefix.time] + [wait for (_, untimed), wait in first.items() if untimed]
    earliest = min(filter(None, (_latest_time(event, scene.sources[event.file]) for event in dated)), default=None)

    def ended_later(event: Event) -> bool:
        time = event.prefix.time
        if earliest is not None and time is not None and earliest < time:
            return True
        before = (first.get((event.file, untimed)) for untimed in (True, False) if untimed or time is None)
        return any(wait is not None and wait.order < event.order for wait in before)

    ended = {event for event in scene.events if event.name == "killed" and ended_later(event)}
    return [replace(e, grade=min(e.grade, Grade.GENERIC)) if e in ended else e for e in scene.events]


def _latest_time(event: Event, reading: Reading) -> tuple[int, int, int] | None:
    """Return the latest time at which a line could have been written.

    If the line has a timestamp, the result is this timestamp. If not, the result is the timestamp of the next event
    that has one.
    """
    later = (other for other in reading.events if other.order >= event.order and other.prefix.time is not None)
    return event.prefix.time or next((other.prefix.time for other in later), None)


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.ECHO}),
    passes={PassStage.ENDING: _ended, PassStage.CONSEQUENCES: _ended_after_a_wait},
)
