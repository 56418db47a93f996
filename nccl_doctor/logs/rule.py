"""Defines rules, each of which links a pattern for log lines with a diagnosis and a grade.

The module also has patterns that code uses by name, that several diagnoses share, or whose lines only look like faults.
A hang has no error line, so it is recognised by the place where the run stopped. Sources in NCCL: src/init.cc and
src/bootstrap.cc; for sockets, src/include/socket.h up to 2.11, src/misc/socket.cc from 2.12, and src/os/linux.cc from
2.29; for nccl-tests, src/common.cu.
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
"""Requests to web servers, not to the job's hosts; on clusters, downloads, trackers and IPv6 look-ups often fail."""


class Grade(IntEnum):
    """Strength of a line as evidence for a cause. The line of the highest grade is blamed, or the first of several."""

    BENIGN = 0
    """A line that only looks like a fault."""
    CLUE = 1
    """A line that shows how far a run came before it stopped, but no fault."""
    HINT = 2
    """A line (a retry, an unusual interface) that is a fault only if the run failed and nothing else explains that."""
    GENERIC = 3
    """A failure whose reason is not in the line."""
    SYMPTOM = 4
    """A consequence for ranks after another rank failed, such as a closed connection or a timed-out collective."""
    LIKELY = 5
    """A failure with its own remedy that may itself follow from another failure."""
    ROOT = 6
    """A line that shows the cause itself."""


@dataclass(frozen=True)
class LogRule:
    """A pattern for lines of logs.

    Attributes:
        pattern: a regular expression without lookaround (:mod:`nccl_doctor.text.bounds`). Named groups ``host``,
            ``ip``, ``port``, ``iface`` and ``rank`` become entities.
        sample: a line that the pattern must match; the tests check every rule with its sample.
        unless: a pattern; lines that match it are excluded.
        name: the diagnosis, which is that of the rule's file; empty for BENIGN.
    """

    grade: Grade
    pattern: str
    sample: str
    unless: str = ""
    name: str = ""

    @property
    def expression(self) -> str:
        """Pattern in which WARN also matches the level ATTN (NCCL 2.32)."""
        return self.pattern.replace("WARN ", "(?:WARN|ATTN) ")

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        """The compiled patterns, which are made on first use because most are never used."""
        return safe_regex(self.expression), safe_regex(self.unless) if self.unless else None

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match of the pattern in ``text``; None if there is none, or if ``unless`` matches."""
        pattern, unless = self._compiled
        found = pattern.search(text)
        return None if found is None or (unless is not None and unless.search(text)) else found


root = partial(LogRule, Grade.ROOT)
likely = partial(LogRule, Grade.LIKELY)
symptom = partial(LogRule, Grade.SYMPTOM)
generic = partial(LogRule, Grade.GENERIC)
hint = partial(LogRule, Grade.HINT)
clue = partial(LogRule, Grade.CLUE)
"""Functions such as ``root`` return a rule of their grade from a pattern, a sample, and an excluding pattern."""


def _in_turns(grade: Grade, *lines: str) -> tuple[LogRule, ...]:
    return tuple(LogRule(grade, *pair) for pair in zip(lines[::2], lines[1::2], strict=True))


roots = partial(_in_turns, Grade.ROOT)
likelies = partial(_in_turns, Grade.LIKELY)
symptoms = partial(_in_turns, Grade.SYMPTOM)
"""Functions such as ``roots`` return rules of their grade from alternating patterns and samples."""


CHOSEN = r"Bootstrap ?: Using (?:\[0\])?(?P<iface>[A-Za-z][A-Za-z0-9_.-]*):(?P<ip>[0-9a-fA-F.:]+)"
"""The interface chosen by a process."""

SHARED = r"-> \d{1,6}\[\S{1,16}\] .{0,40}via SHM/"
"""A connection through shared memory between two ranks on a host."""

BUSY = r"\d{1,7}MiB / +\d{1,7}MiB \| +100% +Default"
"""A row of nvidia-smi's table after a log, which shows how busy the GPUs were."""

STARTED = r"nranks \d+ .*- Init START"
"""The start of a rank, which then waits for the others."""

CONNECTED = r"nranks \d+ .*- Init COMPLETE"
"""The line that a rank prints once its communicator is complete."""

TABLE = r"# +size +count +type   redop"
"""The start of a benchmark's table."""

MEETING = r"torch/distributed/\S+\.py\", line \d+, in (?:init_process_group|_?store_based_barrier|\w*rendezvous\w*)"
"""A stack that ends in a rendezvous or the creation of a process group."""

TALKING = (
    r"distributed_c10d\.py\", line \d+, in (?:barrier|monitored_barrier|all_reduce|all_gather\w*|broadcast\w*|gather"
    r"|scatter|reduce\w*|all_to_all\w*|send|recv)\b"
)
"""A stack that ends in a collective."""

COMPLAINED = (
    r"(?i:(?:hangs?|hung|stuck|freezes|frozen|stalls|blocks|blocked) (?:right )?(?:here|forever|indefinitely"
    r"|at this (?:point|step|line|stage)|after this|for (?:hours|minutes|ever)))"
    r"|(?i:(?:nothing|no (?:more|further) (?:output|logs?|lines?)) (?:happens|is printed|after this"
    r"|any ?more|from here))"
    r"|(?i:(?:and then|then it|it just|program|script|training|process|job) (?:hangs|gets stuck|is stuck|freezes))"
)
"""A comment in the log by the person who posted it."""

BROKE_OFF = r"^\^C|^\[mpiexec@\S+\] (?:Sending Ctrl-C|Press Ctrl-C)|Ctrl-C caught|mpirun: killing job"
"""An interrupt from the keyboard."""

INTERRUPTED = r"KeyboardInterrupt|Received (?:2|Signals\.SIGINT) death signal|got signal: 2\b"
"""An interrupt as Python and torchrun report it."""

EXITED = (
    r"(?:failed \(exitcode: (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\)"
    r"|exits with return code = (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|(?:srun: error|pdsh@\S+): (?P<host>\S+): (?:tasks? \S+: E|ssh e)xited with exit code "
    r"(?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|returned non-zero exit status (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\."
    r"|^ +Exit code: +(?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$|^= +EXIT CODE: (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$"
    r"|^command terminated with exit code (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])$)"
)
"""An exit code without a reason (torchrun, DeepSpeed, Slurm, pdsh, Accelerate, Open MPI, Hydra, kubectl). Codes of 128
and more are excluded because they mean a signal.
"""

USAGE = r"(?:argument -|unrecognized arguments: |the following arguments are required: |ambiguous option: )"
"""Message of Python's argparse, after the program's name and "error:", when it rejects a command line."""

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
"""A launcher's message that it ends the other processes; the launcher also killed any process killed later."""

KILLED_FOR_MEMORY = (
    r"(?:oom-kill|oom_kill|oom_reaper|OOMKilled|OOM Killed|[Dd]etected \d+ oom|[Oo]ut [Oo]f [Mm]emory: Kill)"
)
"""A process that the kernel, Slurm or Kubernetes ended for lack of memory, which no script can catch."""

RETURN_CODE = r"INFO misc/socket\.cc:\d+ -> 2\b"
"""ncclSystemError passed up by callers; the call that failed is in an earlier line, which may be missing."""

RAS_LINE = (
    r"(?:job process(?: is|es are) considered dead|Missing communicator data from \d+ "
    r"|#\d+-\d+ \([0-9a-f]{1,16}\) (?:INCOMPLETE|MISMATCH|ERROR)|Communicator ranks have different "
    r"|ranks? (?:\d+ )?(?:have|has) (?:launched up to operation|not launched any op|status )"
    r"|Rank \d+ (?:has .{0,40})?-- (?:GPU|\[process)|Rank \d+ has (?:launched|not launched|status) .{0,80} --"
    r"|Process \d+ on node \S+ managing GPU|(?:ranks|Rank \d+) reported [A-Z][\w ]+)"
)
"""A line of RAS's report (``ncclras``) that shows a fault, or names the rank or process that has it."""

RAS_DEAD, RAS_SILENT, RAS_LEFT = "dead", "silent", "left"
RAS_STARTING, RAS_BEHIND, RAS_ERROR = "INIT", "behind", "error"
"""States of processes and ranks in RAS's report, besides RAS's names of errors.

In this order they mean: no longer reached by RAS, without an answer to RAS, outside a communicator that others use, not
yet in a communicator, behind the other ranks, and any other error.
"""

RECORDED = "flight recorder"
"""Used in place of a line's pattern if only a dump of torch's flight recorder shows the fault."""

C10D_CLIENT = r"client socket has failed to connect to .*"
"""A failed connection to torch's store (torch/csrc/distributed/c10d/socket.cpp); the errno follows."""


def failed_connects(grade: Grade, errno: str, text: str) -> tuple[LogRule, ...]:
    """Return rules for failed connections of NCCL; a connection that is being retried is only a hint.

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
    """Return rules for failed connections of gloo (gloo/transport/tcp); the peer's address follows ``remote=``."""
    full = f"RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:31337: {text}"
    late = f"RuntimeError: timed out connecting: SO_ERROR: {text}, remote=[10.0.0.2]:9"
    return _in_turns(grade, rf"SO_ERROR: .*{errno}", late, rf"connect \[\S+\]:\d+: {errno}", full)


BENIGN = _in_turns(
    Grade.BENIGN,
    r"NCCL DIAG (?:\[OK\]|=== )",
    "n1:4242 NCCL DIAG [OK] ECC: no errors on 16 ranks",
    r"errno: 97 - ",
    "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [head]:29500 (errno: 97 - "
    "Address family not supported by protocol).",
    C10D_CLIENT + r"errno: (?:99|101) - ",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 101 - Network is "
    "unreachable).",
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
