"""Determines which symptoms of a failed all-reduce a diagnosis must explain."""

import re
from collections.abc import Container, Iterable, Iterator

from nccl_doctor.checks.allreduce.culprits import Culprits, is_echo, named_by
from nccl_doctor.model.effect import AFTERMATH, DIALS, KILLED, LOST, SIGNALS, Effect, Reach, Symptom
from nccl_doctor.model.finding import Finding
from nccl_doctor.model.register import entry
from nccl_doctor.model.report import RankReport, Stage
from nccl_doctor.snapshot.smoke import Smoke

_WAITING: dict[Stage, str] = {"none": "not-started", "started": "not-started", "torch": "no-store", "store": "no-group"}
"""Symptom of a rank, keyed by the rank's last stage.

A rank whose last stage is not listed here waits in a collective.
"""
_ON_A_GPU = re.compile(r"CUDA|HIP|cuda|GPU")


def shown(culprits: Culprits) -> tuple[Symptom, ...]:
    """Return the symptoms of the ranks at fault, or of the hosts at fault if the repeated all-reduce was conclusive."""
    kinds: dict[str, list[RankReport]] = {}
    for rank in culprits.ranks:
        kinds.setdefault(_kind(rank, culprits), []).append(rank)
    if culprits.isolation is not None:
        hosts = frozenset(culprits.hosts)
        return tuple(Symptom(kind, hosts, backend=culprits.smoke.backend) for kind in kinds)
    return tuple(symptom for kind, ranks in kinds.items() for symptom in _of(kind, ranks, culprits.smoke))


def everywhere(kind: str, hosts: Iterable[str], smoke: Smoke) -> Symptom:
    """Return a symptom that appeared on ``hosts`` and that any host might have caused."""
    return Symptom(kind, frozenset(hosts), frozenset(rank.host for rank in smoke.ranks), smoke.backend)


def _of(kind: str, ranks: list[RankReport], smoke: Smoke) -> Iterable[Symptom]:
    hosts = dict.fromkeys(rank.host for rank in ranks)
    if kind == "no-store":  # ranks dial the master, where rank 0 runs
        return (Symptom(kind, frozenset(hosts), frozenset({smoke.ranks[0].host}), smoke.backend),)
    if kind in (*_WAITING.values(), *DIALS, LOST, "hang"):
        return (everywhere(kind, hosts, smoke),)
    return (everywhere(kind, (host,), smoke) for host in hosts)


def _kind(rank: RankReport, culprits: Culprits) -> str:
    if culprits.why in ("signal", "launcher"):
        number = rank.signal if culprits.why == "signal" else culprits.smoke.launcher_signals.get(rank.host)
        ended = culprits.why == "launcher" and rank.host in culprits.smoke.launcher_exits
        return "exit" if ended and number is None else "gone" if number is None else SIGNALS.get(number, "signal")
    if culprits.why == "stopped":
        return "in-kernel" if (rank.state or "").startswith("D") else "suspended"
    if culprits.why in ("exit", "elsewhere"):
        return culprits.why
    return _WAITING.get(rank.stage, "hang") if rank.error is None else _exception(rank.error, culprits.smoke)


def _exception(error: str, smoke: Smoke) -> str:
    if is_echo(error, lost=bool(smoke.launchers)):
        return LOST
    return _where(next(iter(named_by(error)), "script-failed"), error)


def _where(name: str, text: str) -> str:
    return "gpu-memory" if name == "out-of-memory" and _ON_A_GPU.search(text) else name


def causes_from_output(smoke: Smoke, passed: Container[str] = ()) -> tuple[tuple[str, Finding], ...]:
    """Return the name and finding of each cause that the ranks' output shows.

    The argument ``passed`` contains the names of checks that found no fault.
    """
    from nccl_doctor.checks.processes.pinned_memory_short import instead
    from nccl_doctor.logs.diagnose import LogSource, diagnose
    from nccl_doctor.logs.rule import Grade
    from nccl_doctor.logs.signs import Case, echoes
    from nccl_doctor.logs.verdict import finding

    lines = {host: "\n".join(output).encode() + b"\n" for host, output in smoke.output.items()}
    verdict = diagnose([LogSource(host, [text]) for host, text in lines.items()])
    following = echoes().union(DIALS if smoke.launchers else ())
    causes: list[tuple[str, Finding]] = []
    for cause in verdict.causes:
        if cause.grade is Grade.ROOT and cause.name not in following:
            hosts = tuple(dict.fromkeys(event.file for event in cause.events))
            made = finding(Case(cause, verdict.log)).model_copy(update={"hosts": hosts})
            swap = cause.name == "memlock-low" and cause.name in passed
            name, made = instead(made) if swap else (cause.name, made)
            text = "\n".join(event.text for event in cause.events)
            changes = {
                "symptoms": (everywhere(_where(name, text), hosts, smoke),),
                "explains": (*entry(name).explains, *words(name)),
            }
            causes.append((name, made.model_copy(update=changes)))
    return tuple(causes)


_DIED = ("exit", "not-started", "script-failed", "nccl-unknown-error", "SIGABRT")
_ENDS = {
    "disk-full": ("SIGBUS",),
    "killed": KILLED,
    "out-of-memory": ("SIGKILL", "gpu-memory"),
    "plugin-fault": ("SIGSEGV",),
    "shm-exhausted": ("SIGBUS",),
}
"""Symptoms that a cause in the ranks' output explains in addition to ``_DIED``, keyed by the name of the cause."""


def words(name: str) -> Iterator[Effect]:
    yield Effect((name, *_DIED, *_ENDS.get(name, ())), Reach.OWN, "the ranks' own words")
    yield Effect(tuple(AFTERMATH), Reach.MEETS, "the others wait for the ranks that say so, or lose them")
