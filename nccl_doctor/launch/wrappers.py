"""Parses the programs that precede a launcher in a command, and the variables that these programs set.

``WRAPPERS`` states which options of each program take a value, according to the manuals of env(1), sudo(8), timeout(1),
numactl(8), srun(1), mpirun(1) of Open MPI 5 and mpiexec of MPICH 4, docker-run(1), apptainer-exec(1), uv run, and conda
run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.shell_variables import filled, is_of_shell
from nccl_doctor.probe.options import find_launcher
from nccl_doctor.text import shell

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_COMMAND = re.compile(r"-[a-z]*c")
_SHELL_WORDS = re.compile(r"\$(?![A-Za-z_{])|[`<>|]")


class Wrapper(NamedTuple):
    """A program that runs another program, such as ``env`` or ``srun``.

    Attributes:
        valued: options whose value is the next word; ``pairs`` are options that take the next two words.
        verbs: subcommands, such as "run", one of which must follow the program's name; empty if no subcommand is
            needed.
        places: number of positional arguments before the started program, such as an image or a duration.
        sets: options that set a variable and have a value of the form NAME=VALUE; ``assigns`` is true if NAME=VALUE can
            also appear without an option.
        starts: whether the wrapper starts the program several times or on several hosts.
        flags: long options without a value (all other long options take a value); None if these options are unknown.
    """

    valued: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    verbs: tuple[str, ...] = ()
    places: int = 0
    sets: frozenset[str] = frozenset()
    assigns: bool = False
    starts: bool = False
    flags: frozenset[str] | None = None


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTAINER = _set(
    "-e --env --env-file -v --volume --name --gpus --network --net --ipc --shm-size --ulimit -w --workdir -u --user "
    "--device --cap-add --cap-drop --mount --entrypoint -p --publish -h --hostname --runtime --security-opt -m "
    "--memory --cpus --cpuset-cpus --add-host -l --label --platform --pull --restart --tmpfs --group-add --pid --uts "
    "--log-driver --log-opt --volumes-from --stop-timeout --init-path --cgroupns --userns"
)
_MPI = Wrapper(
    valued=_set(
        "-np -n -N -c -H -host --host -hostfile --hostfile -machinefile --machinefile -hosts -x -map-by --map-by "
        "-rank-by --rank-by -bind-to --bind-to -rf -wdir --wdir -wd -ppn -perhost -f -prefix --prefix -iface -npernode "
        "--npernode --np --output --timeout --report-uri --envlist -envlist -launcher --path"
    ),
    pairs=_set("-mca --mca -gmca --gmca -genv -env --prtemca --pmixmca"),
    sets=_set("-x"),
    starts=True,
)
WRAPPERS: dict[str, Wrapper] = {
    **dict.fromkeys(("nohup", "time", "exec", "command", "setsid", "caffeinate", "catchsegv"), Wrapper()),
    "env": Wrapper(_set("-u --unset -C --chdir"), assigns=True),
    "sudo": Wrapper(_set("-u --user -g --group -h -p -C -T -U -R -D"), assigns=True),
    "nice": Wrapper(_set("-n --adjustment")),
    "ionice": Wrapper(_set("-c -n -p")),
    "timeout": Wrapper(_set("-s --signal -k --kill-after"), places=1),
    "stdbuf": Wrapper(_set("-i -o -e")),
    "taskset": Wrapper(places=1),
    "numactl": Wrapper(
        _set("-C --physcpubind -N --cpunodebind -m --membind -p --preferred -i --interleave -P --preferred-many -w")
    ),
    "uv": Wrapper(
        _set(
            "-p --python --with --with-editable --with-requirements --extra --group --only-group --no-group --project "
            "--directory --env-file --package --index --default-index --config-file --color --refresh-package"
        ),
        verbs=("run",),
    ),
    **dict.fromkeys(("conda", "mamba", "micromamba"), Wrapper(_set("-n --name -p --prefix --cwd"), verbs=("run",))),
    **dict.fromkeys(("poetry", "pipenv", "pdm", "pixi", "rye"), Wrapper(_set("-e --environment"), verbs=("run",))),
    "srun": Wrapper(
        _set("-N -n -c -p -w -x -t -A -J -o -e -i -D -G -m -C -q -d -r -M -W -T -B"),
        starts=True,
        flags=_set(
            "--label --unbuffered --overlap --exclusive --pty --exact --kill-on-bad-exit --oversubscribe --overcommit "
            "--whole --wait-all-nodes --no-kill --verbose --quiet --contiguous --spread-job --preserve-env "
            "--no-container-mount-home --container-mount-home --container-writable --container-readonly "
            "--container-remap-root"
        ),
    ),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"), _MPI),
    **dict.fromkeys(
        ("docker", "podman", "nerdctl"), Wrapper(_CONTAINER, verbs=("run", "exec"), places=1, sets=_set("-e --env"))
    ),
    **dict.fromkeys(
        ("apptainer", "singularity"),
        Wrapper(
            _set("-B --bind --env --env-file -H --home --pwd --cwd --overlay -W --workdir -S --scratch --network-args"),
            verbs=("exec", "run"),
            places=1,
            sets=_set("--env"),
        ),
    ),
}


@dataclass
class Front:
    """The part of a command before the launcher, such as variable assignments, or ``srun`` with its options.

    Attributes:
        count: number of words before the launcher; ``begun`` is the number of words before srun or mpirun.
        variables: names and values of the environment variables that are set before the launcher.
        started: words of the srun or mpirun command that starts the launcher; empty if neither starts the launcher.
        inner: words of the command in a shell's ``-c`` argument; None if no shell is run with ``-c``.
        unread: reason why the started program is unknown; None if the program is known.
    """

    count: int = 0
    begun: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    inner: tuple[str, ...] | None = None
    unread: str | None = None


def front_of(words: Sequence[str]) -> Front:
    """Parse the words that precede the launcher or script in a command."""
    front = Front()
    while front.count < len(words):
        word = words[front.count]
        name = PurePath(word).name
        if match := ASSIGNMENT.fullmatch(word):
            front.variables[match[1]] = match[2]
            front.count += 1
        elif name in SHELLS:
            _read_shell(front, words)
            break
        elif name in WRAPPERS:
            begin = front.count
            front.count += 1
            _pass_over(front, words, name)
            if front.unread is not None:
                break
            if WRAPPERS[name].starts:
                front.begun, front.started = begin, tuple(words[begin : front.count])
        else:
            break
    return front


def _pass_over(front: Front, words: Sequence[str], name: str) -> None:
    """Skip the wrapper's subcommand, options, and positional arguments."""
    wrapper = WRAPPERS[name]
    if wrapper.verbs:
        if "".join(words[front.count : front.count + 1]) not in wrapper.verbs:
            front.unread = f"what {' '.join(words[front.count - 1 : front.count + 1])} starts is not known here"
            return
        front.count += 1
    places = wrapper.places
    while front.count < len(words):
        word = words[front.count]
        match = ASSIGNMENT.fullmatch(word) if wrapper.assigns else None
        if match is not None:
            front.variables[match[1]] = match[2]
        elif word == "--":
            front.count += 1
            return
        elif word.startswith("-") and len(word) > 1:
            _option(front, words, wrapper)
        elif places:
            places -= 1
        else:
            return
        front.count += 1


def _option(front: Front, words: Sequence[str], wrapper: Wrapper) -> None:
    """Read an option and its value, and set ``front.count`` to the index of the last word read."""
    written, sign, value = words[front.count].partition("=")
    follows = written in wrapper.valued or (
        wrapper.flags is not None and written.startswith("--") and written not in wrapper.flags
    )
    if written in wrapper.pairs:
        front.count += 2
    elif follows and not sign:
        front.count += 1
        value = "".join(words[front.count : front.count + 1])
    if written in wrapper.sets and (match := ASSIGNMENT.fullmatch(value)):
        front.variables[match[1]] = match[2]
    if written == "--export":  # srun(1)
        matches = [match for part in value.split(",") if (match := ASSIGNMENT.fullmatch(part)) is not None]
        front.variables |= {match[1]: match[2] for match in matches}
    if written in ("-genv", "-env"):  # mpiexec of MPICH
        name, setting = words[front.count - 1 : front.count + 1]
        front.variables[name] = setting


def _read_shell(front: Front, words: Sequence[str]) -> None:
    at = front.count + 1
    while words[at : at + 1] and words[at].startswith("-") and not _COMMAND.fullmatch(words[at]):
        at += 1
    if not words[at : at + 1] or not _COMMAND.fullmatch(words[at]) or len(words) <= at + 1:
        front.unread = f"what {' '.join(words[front.count : at + 1])} starts is not known here"
        return
    try:
        front.inner = the_start(words[at + 1])
    except UsageError as error:
        front.unread = str(error)


def the_start(script: str) -> tuple[str, ...]:
    """Return the launch command in a shell script, preceded by the variables that the script sets before the command.

    UsageError is raised if the script does not start exactly one launcher, or if the command contains a word that only
    a shell can expand.
    """
    starts: list[tuple[str, ...]] = []
    variables: dict[str, str] = {}
    for line in _commands(script):
        tokens = line[1:] if line[0] in ("export", "declare", "set") else line
        if all(ASSIGNMENT.fullmatch(word) for word in tokens):
            variables |= {name: filled(value, variables) for name, _, value in (word.partition("=") for word in tokens)}
            continue
        front = front_of(line)
        rest = line[front.count :]
        known = bool(rest) and (find_launcher(rest)[0].name != "script" or "python" in PurePath(rest[0]).name)
        if front.inner is not None or known:
            literal = {name: value for name, value in variables.items() if not is_of_shell(value)}
            words = [filled(word, literal) for word in line]
            starts.append((*(f"{name}={value}" for name, value in literal.items()), *words))
    if len(starts) != 1:
        raise UsageError(f"{len(starts) or 'no'} lines of the shell's words start a job; give the one that does")
    (start,) = starts
    lost = next((word for word in start if _SHELL_WORDS.search(word)), None)
    if lost is not None:
        raise UsageError(f"only the shell can tell what {shell.word(lost)} is; give the line with its value")
    return start


def _commands(script: str) -> list[list[str]]:
    """Return the words of each simple command in a shell script, omitting lines that ``shlex`` can't parse."""
    commands: list[list[str]] = []
    for line in re.sub(r"\\\n", " ", script).split("\n"):
        reader = shlex.shlex(shell.marked(line), posix=True, punctuation_chars=";&|()")
        reader.whitespace_split, reader.commenters = True, "#"
        command: list[str] = []
        try:
            for word in [*reader, ";"]:
                if re.fullmatch(r"[;&|()]+", word):
                    commands += [command] if command else []
                    command = []
                else:
                    command.append(shell.unmarked(word))
        except ValueError:
            continue
    return commands
