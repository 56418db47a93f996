"""Defines rules, each of which maps a pattern for log lines to a diagnosis and a grade.

The module defines the patterns that code refers to by name, that several diagnoses share, or that match harmless lines.
A hanging job prints no error, so a hang is recognized by the last step that the log shows. The patterns for NCCL's
messages are based on src/init.cc and src/bootstrap.cc. Messages about sockets are in src/include/socket.h up to NCCL
2.11, in src/misc/socket.cc from 2.12, and in src/os/linux.cc from 2.29. The messages of nccl-tests are in
src/common.cu.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial

from nccl_doctor.text.bounds import safe_regex

WEB = (
    r"https?://|HTTPS?Connection|urllib3\.|requests\.exceptions|huggingface\.co\b|huggingface_hub\.|\bwandb[.:]"
    r"|\bpypi\.org|IPv6 network addresses"
)
"""Pattern for requests to web servers rather than to the job's hosts; such requests often fail on clusters."""


class Grade(IntEnum):
    """Strength of a line as evidence for a cause.

    The fault in the first line with the highest grade is reported as the cause.
    """

    BENIGN = 0
    """A line that only looks like a fault."""
    CLUE = 1
    """A line that shows the progress of a run but no fault."""
    HINT = 2
    """A line, such as a retry, that is a fault only if the run failed and no other fault explains the failure."""
    GENERIC = 3
    """A failure whose reason the line does not state."""
    SYMPTOM = 4
    """A consequence of another rank's failure, such as a closed connection or a timed-out collective."""
    LIKELY = 5
    """A failure that has its own remedy but might result from another failure."""
    ROOT = 6
    """A line that shows the cause itself."""


@dataclass(frozen=True)
class LogRule:
    """A pattern for log lines that show a diagnosis.

    Attributes:
        pattern: a regular expression without lookaround (:mod:`nccl_doctor.text.bounds`). The named groups ``host``,
            ``ip``, ``port``, ``iface``, and ``rank`` become entities of the finding.
        sample: example of a line that the pattern must match, for the tests.
        unless: pattern for lines to exclude.
        name: name of the diagnosis, taken from the module that defines the rule; empty for BENIGN.
    """

    grade: Grade
    pattern: str
    sample: str
    unless: str = ""
    name: str = ""

    @property
    def expression(self) -> str:
        """The pattern, with ``WARN`` extended to match the ``ATTN`` level of NCCL 2.32 as well."""
        return self.pattern.replace("WARN ", "(?:WARN|ATTN) ")

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        """The compiled patterns, created on first use because most patterns are never used."""
        return safe_regex(self.expression), safe_regex(self.unless) if self.unless else None

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match of the pattern in ``text``, or None if the pattern does not match or ``unless`` matches."""
        pattern, unless = self._compiled
        match = pattern.search(text)
        return None if match is None or (unless is not None and unless.search(text)) else match


root = partial(LogRule, Grade.ROOT)
likely = partial(LogRule, Grade.LIKELY)
symptom = partial(LogRule, Grade.SYMPTOM)
generic = partial(LogRule, Grade.GENERIC)
hint = partial(LogRule, Grade.HINT)
clue = partial(LogRule, Grade.CLUE)
"""Functions that create a rule from a pattern, a sample, and an optional ``unless``; their names give the grade."""


def _in_turns(grade: Grade, *lines: str) -> tuple[LogRule, ...]:
    return tuple(LogRule(grade, *pair) for pair in zip(lines[::2], lines[1::2], strict=True))


roots = partial(_in_turns, Grade.ROOT)
likelies = partial(_in_turns, Grade.LIKELY)
symptoms = partial(_in_turns, Grade.SYMPTOM)
"""Functions that create rules from alternating patterns and samples; their names give the grade."""


CHOSEN = r"Bootstrap ?: Using (?:\[0\])?(?P<iface>[A-Za-z][A-Za-z0-9_.-]*):(?P<ip>[0-9a-fA-F.:]+)"
"""Pattern for the network interface that a process chose."""

SHARED = r"-> \d{1,6}\[\S{1,16}\] .{0,40}via SHM/"
"""Pattern for a shared-memory connection between two ranks on a host."""

BUSY = r"\d{1,7}MiB / +\d{1,7}MiB \| +100% +Default"
"""Pattern for a row of nvidia-smi's table that shows a GPU utilization of 100%."""

STARTED = r"nranks \d+ .*- Init START"
"""Pattern for the line that a rank prints before it waits for the other ranks of a communicator."""

CONNECTED = r"nranks \d+ .*- Init COMPLETE"
"""Pattern for the line that a rank prints when its communicator is complete."""

TABLE = r"# +size +count +type   redop"
"""Pattern for the header of a benchmark's result table."""

MEETING = r"torch/distributed/\S+\.py\", line \d+, in (?:init_process_group|_?store_based_barrier|\w*rendezvous\w*)"
"""Pattern for a stack frame in a rendezvous or in the creation of a process group."""

TALKING = (
    r"distributed_c10d\.py\", line \d+, in (?:barrier|monitored_barrier|all_reduce|all_gather\w*|broadcast\w*|gather"
    r"|scatter|reduce\w*|all_to_all\w*|send|recv)\b"
)
"""Pattern for a stack frame in a collective or point-to-point operation."""

COMPLAINED = (
    r"(?i:(?:hangs?|hung|stuck|freezes|frozen|stalls|blocks|blocked) (?:right )?(?:here|forever|indefinitely"
    r"|at this (?:point|step|line|stage)|after this|for (?:hours|minutes|ever)))"
    r"|(?i:(?:nothing|no (?:more|further) (?:output|logs?|lines?)) (?:happens|is printed|after this"
    r"|any ?more|from here))"
    r"|(?i:(?:and then|then it|it just|program|script|training|process|job) (?:hangs|gets stuck|is stuck|freezes))"
)
"""Pattern for a comment in which the person who posted the log reports a hang."""

BROKE_OFF = r"^\^C|^\[mpiexec@\S+\] (?:Sending Ctrl-C|Press Ctrl-C)|Ctrl-C caught|mpirun: killing job"
"""Pattern for a keyboard interrupt as shown by a terminal or MPI launcher."""

INTERRUPTED = r"KeyboardInterrupt|Received (?:2|Signals\.SIGINT) death signal|got signal: 2\b"
"""Pattern for an interrupt as reported by Python or torchrun."""

EXITED = (
    r"(?:failed \(exitcode: (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\)"
    r"|exits with return code = (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|(?:srun: error|pdsh@\S+): (?P<host>\S+): (?:tasks? \S+: E|ssh e)xited with exit code "
    r"(?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|returned non-zero exit status (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\."
    r"|^ +Exit code: +(?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$|^= +EXIT CODE: (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$"
    r"|^command terminated with exit code (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$)"
)
"""Pattern for an exit code without a reason (torchrun, DeepSpeed, Slurm, pdsh, Accelerate, Open MPI, Hydra, kubectl).
Exit codes of 128 and above are excluded because they indicate a signal.
"""

USAGE = r"(?:argument -|unrecognized arguments: |the following arguments are required: |ambiguous option: )"
"""Pattern for the message with which Python's argparse rejects a command line."""

TERMINATING = (
    r"(?:Forcefully terminating all other processes|[Ss]ending process \d+ closing signal"
    r"|Closing process \d+ via signal|Killing subprocess \d+|Terminating (?:StepId|job step|all)|[Jj]ob step aborted"
    r"|Force Terminated StepId"
    r"|\[rank: \d+\] Child process with PID \d+ terminated with code"
    r"|primary job (?:terminated|job)|MPI_ABORT was invoked|mpirun (?:detected|has exited due)|KILLING (?:JOB|TASK)"
    r"|prterun (?:detected|has exited due)|process returned a non-zero exit code|[Kk]illing (?:all )?remaining"
    r"|Received sigquit from a child process"
    r"|Shutting down (?:all )?workers|Terminat\w+ (?:all )?(?:other|remaining|sibling) (?:processes|ranks|workers))"
)
"""Pattern for a launcher's message that it is terminating the other processes, which are killed afterwards."""

KILLED_FOR_MEMORY = (
    r"(?:oom-kill|oom_kill|oom_reaper|OOMKilled|OOM Killed|[Dd]etected \d+ oom|[Oo]ut [Oo]f [Mm]emory: Kill)"
)
"""Pattern for a message that the kernel, Slurm, or Kubernetes killed a process because memory ran out."""

RETURN_CODE = r"INFO misc/socket\.cc:\d+ -> 2\b"
"""Pattern for an ``ncclSystemError`` that a function passes to its caller; an earlier line might show the cause."""

RAS_LINE = (
    r"(?:job process(?: is|es are) considered dead|Missing communicator data from \d+ "
    r"|#\d+-\d+ \([0-9a-f]{1,16}\) (?:INCOMPLETE|MISMATCH|ERROR)|Communicator ranks have different "
    r"|ranks? (?:\d+ )?(?:have|has) (?:launched up to operation|not launched any op|status )"
    r"|Rank \d+ (?:has .{0,40})?-- (?:GPU|\[process)|Rank \d+ has (?:launched|not launched|status) .{0,80} --"
    r"|Process \d+ on node \S+ managing GPU|(?:ranks|Rank \d+) reported [A-Z][\w ]+)"
)
"""Pattern for a line of ``ncclras`` output that shows a fault or names a faulty rank or process."""

RAS_DEAD, RAS_SILENT, RAS_LEFT = "dead", "silent", "left"
RAS_STARTING, RAS_BEHIND, RAS_ERROR = "INIT", "behind", "error"
"""States of processes and ranks in RAS output, in addition to RAS's names for errors.

The states mean, in order: unreachable, not answering, having a status (other than INIT) that most ranks do not have,
initializing, behind the other ranks, and any other error.
"""

RECORDED = "flight recorder"
"""Placeholder for the pattern of a fault that only a dump of torch's flight recorder shows."""

C10D_CLIENT = r"client socket has failed to connect to .*"
"""Pattern for the message of a failed connection to torch's store (torch/csrc/distributed/c10d/socket.cpp).

The pattern ends before the errno.
"""


def failed_connects(grade: Grade, errno: str, text: str) -> tuple[LogRule, ...]:
    """Return rules for failed NCCL connections; a connection that is being retried counts only as a hint.

    ``errno`` is a pattern for the text from strerror(3), and ``text`` is an example that the pattern matches.
    """
    warn = f"n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : {text}"
    last = f"Last error:  socketPollConnect: connect to 10.0.0.2<4242> returned {text}, exceeded error retry count"
    retry = f"n1:1:2 [0] NCCL INFO Call to connect returned {text}, retrying"
    return (
        LogRule(grade, f"WARN .*[Cc]onnect to .*(?:failed|returned).*{errno}", warn),
        LogRule(grade, f"onnect (?:to .* )?returned .*{errno}.*exceeded error retry", last),
        hint(f"INFO .*connect.* returned .*{errno}.*retrying", retry),
    )


def failed_pairs(grade: Grade, errno: str, text: str) -> tuple[LogRule, ...]:
    """Return rules for failed Gloo connections (gloo/transport/tcp)."""
    full = f"RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:31337: {text}"
    late = f"RuntimeError: timed out connecting: SO_ERROR: {text}, remote=[10.0.0.2]:9"
    return _in_turns(grade, rf"SO_ERROR: .*{errno}", late, rf"connect \[\S+\]:\d+: {errno}", full)


C10D_UNREACHABLE = (
    r"client socket has failed to connect to \[?(?P<ip>\d{1,3}(?:\.\d{1,3}){3})\]?:(?P<port>\d+) \(errno: 101 - "
)
"""Pattern for a connection to an IPv4 address to which the host has no route. An IPv6 address without a route does no
harm, because torch then tries the IPv4 addresses.
"""

_C10D_BENIGN = (
    LogRule(
        Grade.BENIGN,
        C10D_CLIENT + r"errno: (?:99|101) - ",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 101 - Network is "
        "unreachable).",
        unless=C10D_UNREACHABLE,
    ),
)

BENIGN = _C10D_BENIGN + _in_turns(
    Grade.BENIGN,
    r"NCCL DIAG (?:\[OK\]|=== )",
    "n1:4242 NCCL DIAG [OK] ECC: no errors on 16 ranks",
    r"errno: 97 - ",
    "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [head]:29500 (errno: 97 - "
    "Address family not supported by protocol).",
    # events of a subnet manager at work, as ibv_event_type_str names them; transfers go on after them
    r"NET/IB ?: .{0,40}Got async event : (?:client reregistration|port active|SM change|LID change|P_Key change)",
    "n1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration",
    r"NCCL INFO .*Cuda failure",
    "n1:1:2 [0] NCCL INFO misc/cudawrap.cc:36 Cuda failure 'initialization error'",
    r"NET/OFI .{0,80}ncclGetVersion",
    "n1:1:2 [0] NCCL WARN NET/OFI Failed to find ncclGetVersion symbol, can not get NCCL version",
    r"WARN NET/OFI (?:Failed to open libcudart|.*(?:using default|not set|Setting ))",
    "n1:1:2 [0] configure_x:9 NCCL WARN NET/OFI Failed to open libcudart.so",
    r"fastsocket\S* NCCL WARN (?:Cannot get incoming CPU|Maximum retry reached for)",
    "n1:1:2 [0] net_fastsocket.cc:765 NCCL WARN Cannot get incoming CPU.",
    r"WARN .*(?:Missing \"?(?:iommu=|amd_iommu)|NUMA auto balancing enabled|HSA_FORCE_FINE_GRAIN_PCIE)",
    'n1:1:2 [0] init.cc:1 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
    "instablity or hang!",
    r"INFO .*\[Service thread\] Connection closed by localRank",
    "n1:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
)
