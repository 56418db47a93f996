"""The training script failed with an exception, or with an exit code and no output.

What it means: The fault is in the script, not in NCCL or the network. After the script of one rank has failed, the
other ranks lose their connections or wait until a timeout.

How we know: torch prints an uncaught exception after a prefix such as "[rank1]:", or the log contains an error about
tensor shapes or devices. A launcher's message "exitcode: 1", or its summary of failures, leads to this diagnosis only
if no other line explains the failure.

Fix: Read the traceback of the rank that the diagnosis names. If the log has no traceback, use `torchrun --log-dir DIR
--tee 3` to keep every rank's output. If the script's main function has the `record` decorator from
torch.distributed.elastic.multiprocessing.errors, torchrun's summary contains the traceback.

References: torch/distributed/elastic/multiprocessing/errors; torch/distributed/distributed_c10d.py (the excepthook).
"""

import re
import signal
from dataclasses import replace

from nccl_doctor.checks.seen_in_logs.killed import ABORTED, CRASHED, only_frames
from nccl_doctor.launch.plan import nearest
from nccl_doctor.logs.log import Event, Reading, task_numbers
from nccl_doctor.logs.rule import EXITED, TERMINATING, USAGE, WEB, Grade, clue, generic, hint, likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise, having
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.secrets import part

from_logs(__name__, "NCD919")

_PLAIN = (
    r"(?:Value|Type|Key|Index|Attribute|Name|UnboundLocal|Assertion|ZeroDivision|FileNotFound|IsADirectory"
    r"|NotImplemented|ModuleNotFound|Import|UnicodeDecode|UnicodeEncode|JSONDecode|Recursion|Overflow|FloatingPoint|EOF|Unpickling)Error"
)

_BEGINS = r"(?:^|\\n|\] |\]: |>:? ?|\) |\| |\d: )"
"""Pattern for the start of a line, including a line inside a JSON string, or for the end of a launcher's prefix."""


_DIVIDES = re.compile(r"batch\D{0,20}(?P<batch>\d{1,9}) must be (?:a )?multiple of \D{0,40}(?P<by>\d{1,6})")
"""Error message of YOLOv5 and similar scripts about a batch size that is not a multiple of the number of GPUs."""


_NOT_FOUND = re.compile(r"(\S+): command not found$")
_CODE = re.compile(r"(?i:exit ?code *:? *|exit status |return code = )(\d{1,3})\b")


def _advice(case: Case) -> Advice:
    if case.first.wording not in (EXITED, TERMINATING, _SUMMARY):
        size = _DIVIDES.search(case.first.text)
        if size and int(size["by"]):
            near = nearest(int(size["batch"]), int(size["by"]))
            return advise(
                f"The script on {case.who} refuses batch size {size['batch']}, which does not divide evenly among "
                f"{size['by']} GPUs.",
                f"Use batch size {' or '.join(map(str, near))}.",
            )
        if missing := _NOT_FOUND.search(case.first.text):
            return advise(
                f"{case.who} can't find the program {part(missing[1], 0, 80)}.",
                "The PATH of a command over SSH or of a job script differs from a login shell's: write the program's "
                "full path, or activate its environment in the same line.",
            )
        event = next((event for event in case.cause.events if "RayTaskError(" not in event.message), case.first)
        return advise(
            f"The script itself failed on {case.who}: {part(' '.join(event.message.split()), 0, 160)}",
            "Read the lines above the error, and its traceback if there is one; nothing in the log points to NCCL or "
            "the network.",
        )
    code = _CODE.search(case.first.text)
    return advise(
        f"{case.who} {f'ended with exit code {code[1]}' if code else 'failed'}, and the log does not show why.",
        "See that rank's own output: torchrun's --log-dir with --tee 3 keeps it, and @record on the main function "
        "(torch.distributed.elastic.multiprocessing.errors) puts its traceback into torchrun's summary.",
    )


_SUMMARY = r"  exitcode  : -?\d{1,3} \(pid: \d|multiprocessing\.errors\.ChildFailedError:"
"""Pattern for a row or the title of torchrun's summary, in which the process that failed first is the last row."""

RULES = (
    clue(
        TERMINATING,
        "[rank: 0] Child process with PID 812 terminated with code 1. Forcefully terminating all other processes",
    ),
    hint(_BEGINS + r"(?:[\w.]+\.)?\w*(?:Error|Exception)$", "AssertionError", unless=WEB),
    hint(  # transformers prints it after it has retried; other lines about downloads are ignored
        r"OSError: (?:We couldn't connect to 'https://|Can't load \w+ for ')",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    hint(
        r"RayTaskError\(\w+\): ray::\w*Worker\w*\.\S{1,80} \(pid=\d+, ip=(?P<ip>[0-9a-fA-F.:]+)",
        "ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=40390, ip=10.42.7.19)",
    ),
    hint(
        r"(?:Assertion .{1,300} failed|Check failed: |terminate called after throwing an instance"
        r"|Fatal Python error: |\bFATAL(?: ERROR)?: [A-Za-z])",
        "python: /src/kernel.cpp:88: void run(): Assertion `n % 8 == 0' failed.",
        unless=WEB + r"|c10::Dist|ProcessGroup",
    ),
    # torch's excepthook writes the rank before the lines of an uncaught exception (torch 2.4,
    # torch/distributed/distributed_c10d.py)
    likely(r"\[rank(?P<rank>\d+)\]: (?:[\w.]+\.)?" + _PLAIN + r"(?:: |$)", "[rank1]: ValueError: bad shape"),
    likely(
        r"RuntimeError: (?:The size of tensor a|mat1 and mat2 shapes|shape '|Sizes of tensors must match"
        r"|Expected all tensors to be on the same device|Error\(s\) in loading state_dict"
        r"|element 0 of tensors does not require grad|Trying to backward through the graph"
        r"|one of the variables needed for gradient|stack expects each tensor|Given groups="
        r"|[Ee]xpected scalar type|a leaf Variable that requires grad)",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (16) at non-singleton dimension 0",
    ),
    likely(  # argparse's words
        r"(?:^|[\s\]:])[\w./-]{1,80}\.py: error: " + USAGE, "train.py: error: unrecognized arguments: --epoch=3"
    ),
    likely(  # a shell, slurmstepd and mpirun
        r"(?::|\d:) (?:\S{0,80}/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|vllm): command not "
        r"found$|slurmstepd: error: execve\(\): |unable to find the specified executable file",
        "gpu02: bash: line 1: torchrun: command not found",
    ),
    hint(  # a shell, Python and the dynamic loader; of a program that is not needed it is no fault
        r"\S: command not found$|: can't open file '|: cd: .{1,200}: No such file or directory$"
        r"|: error while loading shared libraries: ",
        "bash: line 3: cd: /home/me/run: No such file or directory",
    ),
    generic(_SUMMARY, "  exitcode  : 1 (pid: 812)"),
    generic(
        EXITED,
        "E1120 10:00:05.456000 1234 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 1 (pid: 1301) of binary: /opt/py/bin/python",
    ),
    hint(
        _BEGINS + r"(?:[\w.]+\.)?\w*(?:Error|Exception): ",
        "ValueError: bad shape",
        unless=WEB
        + r"|raise |ProcessRaisedException|DataLoader worker \(pid|torch\.distributed\.elastic\S*(?:Error|Exception): "
        + r"|subprocess\.Called",
    ),
)

_LAST_WORDS = 1
"""Maximum number of lines other than stack frames that may follow the last exception of a log."""

_SERVED = re.compile(rb'HTTP/1\.[01]" [1-5]\d\d')
"""Pattern for the log line of an HTTP server, which shows that the server kept running after a failed request."""


_STOPPED = re.compile(r"terminated with code [1-9]|MPI_ABORT was invoked|[Jj]ob step aborted")
"""Messages that launchers print when they terminate the other ranks after a rank has failed."""


def _given_up(scene: Scene) -> list[Event]:
    """Record that an uncaught exception ended its process, or that a launcher ended the job for an unknown reason."""
    if all(event.grade <= Grade.CLUE for event in scene.events) and not scene.log.facts.ended_well:
        stops = [event for event in scene.events if event.wording == TERMINATING and _STOPPED.search(event.text)]
        return [replace(event, name="script-failed", grade=Grade.GENERIC) for event in stops]
    failures = [event for event in scene.events if event.name == "script-failed"]
    exceptions = {event.file: event.line for event in failures if event.grade is Grade.HINT}

    def ends_with(reading: Reading, line: int) -> bool:
        served = _SERVED.search(reading.tail.rstrip().rpartition(b"\n")[2])
        if reading.lines - line <= _LAST_WORDS and not served:
            return True
        return not scene.log.joined and only_frames(reading.after(line))

    at_the_end = any(ends_with(log, exceptions[log.name]) for log in scene.log.readings if log.name in exceptions)
    if at_the_end or any(event.grade > Grade.HINT for event in failures):
        scene.stuck.add("script-failed")
    return scene.events


def _summarized(scene: Scene) -> list[Event]:
    """Keep only the last row of torchrun's summary, which shows the process that failed first.

    If another line of the log reports an exit, drop all rows.
    """
    rows = {event.file: event for event in scene.events if event.wording == _SUMMARY}
    notices = {event.file for event in scene.events if event.wording != _SUMMARY and _of_exit(event)}
    events = []
    for event in scene.events:
        if event.wording != _SUMMARY:
            events.append(event)
        elif event is rows[event.file] and event.file not in notices:
            events.append(_first_to_fail(event, scene.sources[event.file]))
    return events


def _of_exit(event: Event) -> bool:
    return event.name in ("killed", "script-failed") and event.grade is not Grade.CLUE


_OF_SHELL = 128


def _first_to_fail(event: Event, reading: Reading) -> Event:
    """Add the failed rank and its host to an event. Exit codes below 0, and a shell's codes above 128, mean signals."""
    if not reading.summary:
        return event
    failed = reading.summary[-1]
    result = replace(event, rank=failed.rank, prefix=replace(event.prefix, host=event.prefix.host or failed.host))
    number = -failed.code if failed.code < 0 else failed.code - _OF_SHELL
    if number <= 0:
        return result
    crashed = {int(signal.SIGABRT): ABORTED, int(signal.SIGSEGV): CRASHED}.get(number)
    return replace(result, name="killed", grade=Grade.LIKELY, wording=crashed or result.wording)


_OWN = re.compile(r"(?:[\w.]+\.)?" + _PLAIN + r"(?:: |$)")


def _not_missed_for_it(scene: Scene) -> list[Event]:
    """Treat an exception as the cause if other processes waited for its process or could not connect to it.

    A failed connection to a process can't cause an exception in that process, whatever the order of the log lines.
    Messages from srun about the exit of other tasks are dropped.
    """
    missed = having(Role.DIALS) | having(Role.WAITS) | {"rendezvous-timeout"}
    waiting = {_process(e) for e in scene.events if e.name in missed}
    errors = [
        e for e in scene.events if e.name == "script-failed" and _OWN.match(e.message) and _process(e) is not None
    ]
    first = [e for e in errors if waiting and _process(e) not in waiting]
    if not first or any(e.grade is Grade.ROOT and e.name not in missed for e in scene.events):
        return scene.events
    tasks = {e.prefix.task for e in first if e.prefix.task is not None}

    def is_of_others(event: Event) -> bool:
        exited = _EXITED_TASKS.search(event.text)
        return bool(tasks and exited and tasks.isdisjoint(task_numbers(exited[1])))

    return [replace(e, grade=Grade.ROOT) if e in first else e for e in scene.events if not is_of_others(e)]


_EXITED_TASKS = re.compile(r"srun: error: \S{1,255}: tasks? (\d[\d,-]{0,200}): Exited")


def _process(event: Event) -> tuple[str | None, int] | None:
    """Return a key that identifies an event's process, or None if the rank is unknown."""
    return None if event.rank is None else (event.file if event.prefix.task is None else None, event.rank)


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.GIVES_UP}),
    weigh=lambda _event, scene: Grade.GENERIC if "script-failed" in scene.stuck else Grade.HINT,
    passes={PassStage.MEANING: _summarized, PassStage.GIVING_UP: _given_up, PassStage.CONSEQUENCES: _not_missed_for_it},
)
