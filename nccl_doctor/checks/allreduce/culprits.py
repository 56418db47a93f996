"""Finds the ranks that caused an all-reduce to fail.

The evidence comes from the ranks' reports, the ranks' output, and a repetition of the all-reduce in groups of hosts.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from nccl_doctor.checks.allreduce.link import counters
from nccl_doctor.model.base import Skipped, Unknown
from nccl_doctor.model.effect import DIALS
from nccl_doctor.model.report import STAGES, IsolationReport, RankReport, Stage
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import fold, fold_numbers, nouns
from nccl_doctor.text.secrets import part


@lru_cache(maxsize=256)
def named_by(error: str) -> tuple[str, ...]:
    """Return the names of the diagnoses that an error message suggests, with the most likely diagnosis first."""
    from nccl_doctor.logs.diagnose import LogSource, diagnose

    return tuple(cause.name for cause in diagnose([LogSource("error", [error.encode() + b"\n"])]).causes)


def is_echo(error: str, *, lost: bool = False) -> bool:
    """Return whether an error only shows that other ranks ended.

    The argument ``lost`` must be True if the launcher failed on any host.
    """
    from nccl_doctor.logs.signs import echoes

    following = echoes().union(DIALS if lost else ())
    return bool(names := named_by(error)) and following.issuperset(names)


MISSING: dict[Stage, str] = {
    "none": "never started",
    "started": "did not finish importing torch",
    "torch": "did not reach the master's store",
    "store": "waited for the others to join the process group",
    "group": "waited in the first all-reduce",
    "allreduce": "waited in a later all-reduce",
    "sizes": "did not finish destroying the process group",
    "done": "had finished",
}
"""Phrases that describe a rank's progress, keyed by the last stage that the rank reached."""

Why = Literal["signal", "error", "exit", "launcher", "stopped", "start", "elsewhere", "behind", "echo"]
"""Reasons for examining certain ranks first.

"signal", "error" and "exit" mean that the ranks were killed, raised an error, or exited without an error. "launcher"
means that the ranks lost their launcher or the connection to it. "stopped" ranks are suspended or blocked in the
kernel, and "start" ranks have not finished importing torch. "elsewhere" ranks run other code while all others wait in a
collective. "behind" ranks stopped at an earlier stage than the other ranks, and "echo" ranks only lost the connection
to other ranks.
"""
OWN_FAULT: frozenset[Why] = frozenset({"signal", "error", "exit", "launcher", "stopped", "start", "elsewhere"})
"""Reasons that lie in the ranks themselves rather than in a connection between ranks."""

_MOST_TRIALS = 8
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
_SAYS_NOTHING = re.compile(
    r"(?:\[rank\d+\]: )?"
    r"(?:\s.*|Traceback.*|[=-]*|time *:.*|Root Cause.*|Failures:|\[\d+\]:|\S+ FAILED|.*\.ChildFailedError:.*)"
)
"""Pattern for lines of tracebacks and of torchrun's failure table that add no information about a rank."""
_WAITING = ("/torch/distributed/", "/torch/nn/parallel/")
_BETWEEN = ("/torch/", "<frozen ", "/fd/")
"""Parts of file names that identify stack frames of torch, the import system and nccl-doctor's worker."""


@dataclass(frozen=True)
class Culprits:
    """The ranks to examine first, and the reason for examining these ranks (:data:`Why`)."""

    smoke: Smoke
    ranks: tuple[RankReport, ...]
    why: Why

    @property
    def isolation(self) -> IsolationReport | None:
        """Result of repeating the all-reduce in groups of hosts, or None if the repetition was inconclusive."""
        report = self.smoke.isolation
        return report if isinstance(report, IsolationReport) and report.culprit is not None else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that most likely caused the failure.

        The hosts are those with which the repeated all-reduce failed or, if the repetition was inconclusive, the hosts
        of ``ranks``.
        """
        return self.isolation.hosts if self.isolation else tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def named(self) -> str:
        """Text that names the ranks and their hosts, such as ``rank 3 on node2`` or ``ranks 8-15 on node[2-3]``."""
        numbers = fold_numbers(rank.rank for rank in self.ranks)
        return f"{nouns(len(self.ranks), 'rank')} {numbers} on {fold(dict.fromkeys(rank.host for rank in self.ranks))}"

    @property
    def isolated(self) -> str:
        """Clause that names the hosts at fault, or an empty string if the repeated all-reduce was inconclusive."""
        if self.isolation is None:
            return ""
        if self.isolation.culprit == "pair":
            first, second = self.hosts
            return (
                f"when it was repeated in groups of hosts, it failed only between {first} and {second} and "
                "worked between each of them and the other hosts"
            )
        return (
            f"when it was repeated in groups of hosts, it failed with {fold(self.hosts)} but worked among the "
            "other hosts"
        )

    @property
    def trials(self) -> tuple[str, ...]:
        """Lines of evidence on the all-reduce in each group of hosts.

        If these tests were inconclusive, the last line states why.
        """
        report = self.smoke.isolation
        if isinstance(report, Unknown):
            return (f"the all-reduce over groups of hosts {report.reason}",)
        if not isinstance(report, IsolationReport):
            return ()
        lines = [f"{fold(trial.hosts)} alone: {'worked' if trial.ok else 'failed'}" for trial in report.trials]
        if len(lines) > _MOST_TRIALS:
            lines = [*lines[: _MOST_TRIALS - 1], f"and {len(lines) - _MOST_TRIALS + 1} more groups"]
        end = [f"repeated over groups of hosts, without a verdict: {report.end}"] if report.end else []
        return tuple(lines + end)

    @property
    def counted(self) -> tuple[str, ...]:
        """Lines of evidence on the growth of RDMA counters, or () if the failure has another explanation."""
        return counters(self.smoke)[0] if self.is_unexplained else ()

    @property
    def is_unexplained(self) -> bool:
        """True if neither the ranks nor the repeated all-reduce show which host or rank is at fault."""
        return self.why not in OWN_FAULT and self.isolation is None

    @property
    def advice(self) -> str:
        """Recommended next step if the failure itself does not suggest a step."""
        if self.is_unexplained and (counted := counters(self.smoke)[1]):
            return counted
        many = len({rank.host for rank in self.smoke.ranks}) > 2
        if many and self.why not in OWN_FAULT and isinstance(self.smoke.isolation, Skipped):
            return "Repeat the all-reduce in groups of hosts to find the faulty one: nccl-doctor smoke --isolate."
        return f"Look at {fold(self.hosts)} first; run again with -v to see all output of its ranks."


def culprits(smoke: Smoke) -> Culprits:
    """Return the ranks to examine first, which show the clearest sign of a fault."""
    unfinished = [rank for rank in smoke.ranks if not rank.ok]
    lost = [rank for rank in unfinished if rank.host in smoke.launchers]
    # ranks that exited by themselves, or for an unknown reason
    left = [r for r in unfinished if r.exit_code is not None or (r.state == "X" and r.signal is None)]
    earliest = min(STAGES.index(rank.stage) for rank in smoke.ranks)
    behind = [rank for rank in smoke.ranks if STAGES.index(rank.stage) == earliest]
    known = [rank for rank in unfinished if rank.stack]
    elsewhere = [rank for rank in known if not any(part in rank.stack[0] for part in _WAITING)]
    killed = [rank for rank in unfinished if rank.signal is not None and rank.error is None]
    signs: tuple[tuple[Why, list[RankReport]], ...] = (
        # torch's watchdog aborts a rank that lost its peers
        ("signal", [rank for rank in killed if rank.signal != signal.SIGABRT]),
        ("error", [rank for rank in unfinished if rank.error and not is_echo(rank.error, lost=bool(smoke.launchers))]),
        ("exit", [rank for rank in left if rank.error is None]),
        ("launcher", lost),
        ("signal", killed),
        ("stopped", [rank for rank in unfinished if rank.state is not None and rank.state[0] in "TtD"]),
        ("start", behind if behind[0].stage in ("none", "started") and len(behind) < len(smoke.ranks) else []),
        ("elsewhere", elsewhere if len(elsewhere) < len(known) else []),
        ("behind", behind if len(behind) < len(smoke.ranks) else []),
    )
    for why, ranks in signs:
        if ranks:
            return Culprits(smoke, tuple(ranks), why)
    return Culprits(smoke, tuple(behind), "echo")


def stages(smoke: Smoke, apart: Sequence[RankReport] = ()) -> Iterator[str]:
    """Yield a line of evidence for each stage at which ranks stopped, ignoring the ranks in ``apart``."""
    for stage in STAGES:
        if there := [rank for rank in smoke.ranks if rank.stage == stage and rank not in apart]:
            hosts = fold(list(dict.fromkeys(rank.host for rank in there)))
            yield f"rank {fold_numbers(rank.rank for rank in there)} ({hosts}): {MISSING[stage]}"


def stacks(smoke: Smoke, ranks: tuple[RankReport, ...], most: int = 2) -> Iterator[str]:
    """Yield lines that show where the main threads of ``ranks`` were, and which stages the other ranks had reached."""
    shown = [rank for rank in ranks[:most] if place(rank)]
    yield from stages(smoke, shown)
    yield from (f"rank {rank.rank} ({rank.host}) was in {place(rank)}" for rank in shown)


def place(rank: RankReport) -> str:
    """Describe the innermost frames of a rank's stack, as in ``sleep (train.py:3), called by main (train.py:9)``."""
    frames = [match for line in rank.stack if (match := _FRAME.search(line))]
    outer = [frame for frame in frames[1:] if not any(part in frame["file"] for part in _BETWEEN)]
    places = (f"{f['name']} ({f['file'].rpartition('/')[2]}:{f['line']})" for f in [*frames[:1], *outer[:2]])
    return ", called by ".join(places)


def last_words(smoke: Smoke, hosts: tuple[str, ...]) -> Iterator[str]:
    """Yield the last informative lines that the ranks on the first two hosts printed, without NCCL's INFO lines."""
    for name in hosts[:2]:
        lines = [text for text in smoke.output.get(name, ()) if "NCCL INFO" not in text]
        known = tuple(rank.error for rank in smoke.ranks if rank.error and rank.host == name) or "\n"
        for line in [text for text in lines if not _SAYS_NOTHING.fullmatch(text) and not text.endswith(known)][-3:]:
            yield f"{name} printed: {part(line.strip(), 0, 300)}"
