"""Why a command did not come into a container: the words of docker, podman, nerdctl, apptainer and nsenter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from nccl_doctor.snapshot import AnyAccessFailure, EngineFacts, EngineFailure
from nccl_doctor.transport.containers.options import InsideOptions

KIND = "container-unreachable"
Problem = Literal["missing", "stopped", "paused", "forbidden", "no-runtime", "no-daemon", "no-shell", "late", "failed"]

_MOST = 8
_WORDS = 200
_SAID: tuple[tuple[Problem, str], ...] = (
    # podman's and nerdctl's words for a program that lacks hold "not found", too: what is told apart first stands first
    ("no-shell", r"/bin/sh\W.*(?:not found|no such file)|stat /bin/sh: no such file"),
    ("forbidden", r"permission denied|operation not permitted|must be root|needs? to be run as root"),
    ("missing", r"no such container|no container with name or id|no instance found|/proc/\d+/\S*.* no such file"),
    ("paused", r"is paused|container state paused"),
    ("stopped", r"is not running|is restarting|container state improper|exec sessions on running|in a stopped"),
    ("no-daemon", r"connect to the docker daemon|docker daemon running|containerd not running|connect to podman"),
    ("no-daemon", r"containerd\.sock.*no such file|failed to dial"),
)  # fmt: skip


class Entry(NamedTuple):
    """What was seen of a way in that came to nothing.

    Attributes:
        said: the lines that came on stdout and stderr after the login.
        status: of the program that should have got in; None where nobody knows.
        running: the containers that run there; None where that is not known.
    """

    options: InsideOptions
    said: Sequence[str]
    status: int | None
    running: Sequence[str] | None = None


def problem(entry: Entry) -> Problem:
    """What kept the command out."""
    program, text = entry.options.program, "\n".join(entry.said)
    absent = (
        rf"(?:^|[\s:]){program}: (?:command )?not found|command not found: {program}|unknown command:? \W*{program}"
    )
    if re.search(absent, text, re.IGNORECASE | re.MULTILINE):
        return "no-runtime"
    return next((found for found, words in _SAID if re.search(words, text, re.IGNORECASE)), "failed")


def failure(entry: Entry) -> EngineFailure:
    """The failure that what was seen shows."""
    found = problem(entry)
    return _failure(entry.options, found, _detail(entry, found), tuple(entry.said))


def late(options: InsideOptions, seconds: float) -> EngineFailure:
    """The failure where no end and no answer came."""
    return _failure(options, "late", f"{options.program} did not get into {options.place} in {seconds:.0f} s", ())


def puzzles(failure: AnyAccessFailure) -> bool:
    """Whether the runtime said what nobody knows."""
    return isinstance(failure, EngineFailure) and (failure.facts.model_extra or {}).get("problem") == "failed"


def explains(failure: AnyAccessFailure) -> bool:
    """Whether it is known what keeps the command out, by the runtime's words."""
    unexplained = ("failed", "late")
    return isinstance(failure, EngineFailure) and (failure.facts.model_extra or {}).get("problem") not in unexplained


def _failure(options: InsideOptions, found: Problem, detail: str, evidence: tuple[str, ...]) -> EngineFailure:
    facts = EngineFacts.model_validate(
        {"problem": found, "runtime": options.runtime, "name": options.name, "late": found == "late"}
    )
    remedy = _REMEDY.get(f"{found} {options.runtime}") or _REMEDY[found]
    words = {"program": options.program, "place": options.place, "name": options.name}
    return EngineFailure(kind=KIND, detail=detail, evidence=evidence, facts=facts, remedy=remedy.format(**words))


def _detail(entry: Entry, found: Problem) -> str:
    options = entry.options
    program, place = options.program, options.place
    said = next((line.strip()[:_WORDS] for line in reversed(entry.said) if line.strip()), "")
    quoted = f', and said "{said}"' if said else ""
    if found == "missing":
        if options.runtime == "enter":
            return f"no process {options.name} runs there"
        return f"there is no {place.removeprefix('the ')}{_running(entry.running)}"
    return {
        "stopped": f"{place} does not run{_running(entry.running)}",
        "paused": f"{place} is paused",
        "forbidden": f"the user who logs in may not use {program}{quoted}",
        "no-runtime": f"there is no program {program}",
        "no-daemon": f"{program} has no service that answers{quoted}",
        "no-shell": f"{place} has no /bin/sh",
        "failed": f"{program} did not get into {place}: it ended with status {entry.status}{quoted}",
    }[found]


def _running(names: Sequence[str] | None) -> str:
    if names is None:
        return ""
    if not names:
        return "; no container of this user's runs there"
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"; there run {', '.join(names[:_MOST])}{more}"


_REMEDY = {
    "missing": "Give the name of a container that runs on the host, under inside: in the hosts file or with --inside; "
    "podman, nerdctl and apptainer show each user his own alone.",
    "missing enter": "Give the PID of a process of the job, as ps on the host shows it.",
    "stopped": "Start it, on the host:",
    "stopped apptainer": "Start the instance again, on the host (apptainer instance start).",
    "paused": "Let it go on, on the host:",
    "forbidden": "Let that user use {program} on the host, or log in as one who may (ssh: user in the hosts file).",
    "forbidden docker": "Let that user use docker: as root on the host, usermod -aG docker with the user's name, then "
    "log in anew; or log in as one who may (ssh: user in the hosts file).",
    "forbidden enter": "Only root may enter another user's namespaces: log in as root (ssh: user in the hosts file).",
    "no-runtime": "Name what holds the containers on that host (docker, podman, nerdctl, apptainer) under inside: in "
    "the hosts file, or have its folder in the PATH that an SSH command gets.",
    "no-daemon": "Start it on the host as root: systemctl start docker; nerdctl wants containerd.",
    "no-shell": "The check needs /bin/sh and Python 3.8 where the job runs: use an image that has them.",
    "late": "See on the host whether {program} answers ({program} ps); a service that hangs wants a restart.",
    "late enter": "See on the host whether process {name} hangs in the kernel (state D in ps).",
    "failed": "See on the host what the same command says by hand; -v shows all of its words.",
}
