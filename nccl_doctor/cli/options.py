"""Command-line options that several commands share, with their help texts and panels.

Related options form a dataclass, which a command takes as one keyword argument. Typer gets a separate parameter for
each field of the dataclass. The metadata key "options" marks a field that holds several options, and maps the name of
each option to its annotated type.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, get_type_hints

import typer

from nccl_doctor.cli.output import Color, FailOn, Out, form_of
from nccl_doctor.errors import UsageError
from nccl_doctor.model.engine import engines, kinds
from nccl_doctor.report.render import FORMS
from nccl_doctor.servers import SERVERS

if TYPE_CHECKING:
    from nccl_doctor.inventory.build import Overrides
    from nccl_doctor.model.cluster import Cluster
    from nccl_doctor.model.register import Check

CheckCodes = set[str] | None
"""Codes of the checks to run, or None for all checks."""


class _Options(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a separate parameter for each field of its dataclass arguments."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def flat(**values: object) -> None:
        made = {name: kind(**{item.name: _pop(item, values) for item in fields(kind)}) for name, kind in groups.items()}
        command(**values, **made)

    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        shown += _parameters(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
    flat.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # inspect reads it, mypy does not know
    flat.__annotations__ = {item.name: item.annotation for item in shown}
    return flat


def _pop(option: Field[Any], fields: dict[str, Any]) -> object:
    """Remove and return a field's value; if the field has several options, return only the options that were given."""
    if "options" not in option.metadata:
        return fields.pop(option.name)
    values = {name: fields.pop(name) for name in option.metadata["options"]}
    return {name: value for name, value in values.items() if value is not None}


@cache
def _parameters(group: type[_Options]) -> tuple[inspect.Parameter, ...]:
    types = get_type_hints(group, include_extras=True)
    return tuple(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(option), annotation=kind)
        for option in fields(group)
        for name, kind in option.metadata.get("options", {option.name: types[option.name]}).items()
    )


def _default(option: Field[Any]) -> object:
    if "options" in option.metadata:
        return None
    return inspect.Parameter.empty if option.default is MISSING else option.default


of_hosts = partial(typer.Option, rich_help_panel="Hosts")
of_engine = partial(typer.Option, rich_help_panel="Slurm and Kubernetes")
of_job = partial(typer.Option, rich_help_panel="Job")
of_run = partial(typer.Option, rich_help_panel="What to check")
of_output = partial(typer.Option, rich_help_panel="Output")
of_watch = partial(typer.Option, rich_help_panel="With --watch")
of_join = partial(typer.Option, rich_help_panel="Without SSH (run on every node)")
PANELS = [
    str(option.keywords["rich_help_panel"])
    for option in (of_watch, of_hosts, of_job, of_run, of_output, of_engine, of_join)
]
"""Option panels in the order of ``--help``; the options needed most often come first."""

LONGEST_S = 7 * 86400
"""Maximum value of every timeout option in seconds, which is within the range of the kernel's timers."""


def _transport(kind: str) -> str:
    if kind not in kinds():
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(map(repr, kinds()))}.")
    return kind


def of_engines(chooser: str, *, fix_port: bool = False) -> dict[str, Any]:
    """Return the annotated types of the engines' options by name. ``chooser`` is the option that selects hosts."""
    flags = [flag for engine in engines() for flag in engine.flags if flag.fix_port or not fix_port]
    made: dict[str, Any] = {}
    for flag in flags:
        text, default = flag.help.format(chooser=chooser), flag.default or True
        option = of_engine(*flag.words, metavar=flag.metavar, help=text, show_default=default)
        made[flag.name] = Annotated[str | None, option]
    return made


def completing(*words: str) -> Callable[[str], list[str]]:
    """Return a shell completion function for a value that must be one of ``words``."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_check(incomplete: str) -> list[str]:
    """Return the shell completions for the name or category of a check."""
    from nccl_doctor.model.register import all_checks

    words = sorted({word for check in all_checks() for word in (check.name, check.category)})
    return completing(*words)(incomplete)


def output(command: str) -> object:
    """Return a command's ``-o`` option with the output formats of the command."""
    complete = completing(*FORMS[command])
    more = "; prometheus needs --watch and --output-file" if command == "hang --watch" else ""
    text = f"Output format{more}."
    return of_output("-o", "--output", metavar="|".join(FORMS[command]), help=text, autocompletion=complete)


OutputOption = Annotated[str, output("check")]
OutputFile = Annotated[
    Path | None,
    of_output(
        "--output-file",
        metavar="FILE",
        help="Write the report to FILE. Without -o, the extension of FILE (such as .json) selects the format.",
    ),
]
ShowSecrets = Annotated[
    bool, of_output("--show-secrets", help="Show passwords, tokens and keys instead of hiding them.")
]
ColorWhen = Annotated[
    Color, of_output("--color", metavar="auto|always|never", help="When to use colour; auto respects NO_COLOR.")
]
Quiet = Annotated[
    bool, of_output("-q", "--quiet", help="Print only faults and what could not be checked, and show no progress.")
]
_SECONDS: dict[str, Any] = {"metavar": "SECONDS", "min": 1, "max": LONGEST_S}
ConnectTimeout = Annotated[
    float | None,
    of_hosts(
        "--connect-timeout",
        help="Time limit for a host to accept the connection. The time limit for the login is three times as long.",
        show_default="ConnectTimeout in ~/.ssh/config, or 10",
        **_SECONDS,
    ),
]
_timeout = partial(typer.Option, "--timeout", help="Time limit for the whole run.", **_SECONDS)
Timeout = Annotated[float, _timeout()]
TimeoutWithoutWatch = Annotated[float, _timeout(help="Time limit for the whole run. A run with --watch has no limit.")]
TimeoutWithSmoke = Annotated[
    float | None,
    _timeout(
        rich_help_panel=of_run.keywords["rich_help_panel"],
        show_default="300 or --smoke-timeout + 240, whichever is longer",
    ),
]
SmokeTimeout = Annotated[float, of_run("--smoke-timeout", help="Time limit for the all-reduce.", **_SECONDS)]
Sudo = Annotated[bool, of_hosts("--sudo", help="Read firewall rules with sudo -n, which never asks for a password.")]
NoSmoke = Annotated[bool, of_run("--no-smoke", help="Skip the all-reduce.")]
NoDiagnostics = Annotated[
    bool,
    of_run(
        "--no-diagnostics",
        help="Do not set NCCL_RUN_DIAGNOSTICS and NCCL_RUN_RAS_DIAGNOSTICS, which make NCCL 2.31 and later test GPUs "
        "and links at startup.",
    ),
]
RateOption = Annotated[
    bool,
    of_run(
        "--rate",
        help="Measure the TCP throughput between hosts for each interface that NCCL uses. This loads the network: each "
        "host is measured with one peer after another, for about 1 s per peer and interface, at full load for half of "
        "that time.",
    ),
]
RateBesideJobs = Annotated[
    bool,
    of_run(
        "-y", "--yes", help="With --rate, measure even while training jobs run on the hosts, which slows the jobs down."
    ),
]
TransportOption = Annotated[
    str,
    of_hosts(
        "--transport",
        metavar="|".join(kinds()),
        callback=_transport,
        help="How to connect to the hosts.",
        autocompletion=completing(*kinds()),
    ),
]
From = Annotated[
    Path | None, of_output("--from", metavar="SNAPSHOT", help="Diagnose a saved snapshot without contacting any host.")
]
Inside = Annotated[
    str | None,
    of_hosts(
        "--inside",
        metavar="RUNTIME:NAME",
        help="Container in which the job runs on each host. RUNTIME is docker, podman, nerdctl or apptainer; "
        "enter:PID joins the namespaces of the process PID instead.",
    ),
]


@dataclass(frozen=True)
class NameOptions:
    """Options that select hosts by name."""

    where: Annotated[
        list[str] | None,
        of_hosts(
            "-w", metavar="LIST", help="Host names, such as 'node[01-04,07]'. With HOSTS, use only the hosts in LIST."
        ),
    ] = None
    exclude: Annotated[list[str] | None, of_hosts("-x", metavar="LIST", help="Host names to exclude.")] = None
    engine: dict[str, Any] = field(default_factory=dict, metadata={"options": of_engines("-w")})

    def cluster(self, overrides: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """Return a run's hosts from the hosts file ``path``; ``transport`` is None if no host will be contacted."""
        return self.reader(overrides, path, transport)({})

    def reader(
        self, overrides: Overrides, path: str | None = None, transport: str | None = None
    ) -> Callable[[Mapping[str, str]], Cluster]:
        """Read the hosts and return a function that builds the cluster with additional environment variables."""
        from nccl_doctor.inventory.load import load, read, requested

        engine = requested(self.engine, transport, os.environ, named=path is not None)
        where, exclude = _together(self.where), _together(self.exclude)
        parsed = read(path, where, os.environ, engine, transport, overrides)
        options: dict[str, Any] = {"engine": engine, "transport": transport, "overrides": overrides, "parsed": parsed}
        return lambda more: load(path, where=where, exclude=exclude, environ={**os.environ, **more}, **options)


def _together(lists: list[str] | None) -> str | None:
    """Join the lists of a repeated option into one list, as pdsh and clush do."""
    return None if lists is None else ",".join(lists)


@dataclass(frozen=True)
class HostOptions(NameOptions):
    """Options that select the hosts of a run."""

    hosts: Annotated[
        str | None,
        typer.Argument(
            metavar="HOSTS",
            help="Hosts file, or - for stdin. Default: the hosts in -w, the nodes of the current Slurm job, "
            "or this machine.",
        ),
    ] = None

    def cluster(self, overrides: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """Return the hosts of a run from the hosts file ``path`` or, without ``path``, from the HOSTS argument."""
        return super().cluster(overrides, path or self.hosts, transport)


@dataclass(frozen=True)
class LoginOptions:
    """Options for logging in to the hosts and for the hosts' Python interpreter."""

    python: Annotated[
        str | None, of_hosts("--python", metavar="PATH", help="Python interpreter that training uses.")
    ] = None
    user: Annotated[str | None, of_hosts("--user", metavar="NAME", help="SSH user name.")] = None
    port: Annotated[int | None, of_hosts("--port", metavar="PORT", help="SSH port.", min=1)] = None

    inside: Inside = None

    def overrides(self) -> Overrides:
        from nccl_doctor.inventory.build import Overrides

        return Overrides(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class JobOptions(LoginOptions):
    """Job settings that can also be given in the hosts file."""

    master_port: Annotated[
        int | None, of_job("--master-port", metavar="PORT", help="Port of the master (rank 0), 1 to 65535.", min=1)
    ] = None
    master_addr: Annotated[
        str | None, of_job("--master-addr", metavar="HOST", help="Address of the master (rank 0).")
    ] = None
    nproc_per_node: Annotated[
        int | None, of_job("--nproc-per-node", metavar="N", help="Number of ranks on each host.", min=1)
    ] = None
    env: Annotated[
        list[str] | None, of_job("--env", metavar="NAME=VALUE", help="Environment variable of the job; repeatable.")
    ] = None


@dataclass(frozen=True)
class ServerOptions(JobOptions):
    """Job settings, and the engine that will run on the hosts."""

    engine: Annotated[
        str | None,
        of_job(
            "--engine",
            metavar="|".join(SERVERS),
            help="Engine that will run on the hosts. check and fix test the address that the engine advertises (except "
            "for accelerate), ifname shows this address, and launch prints the commands that start the engine.",
            autocompletion=completing(*SERVERS),
        ),
    ] = None


@dataclass(frozen=True)
class ReachOptions:
    """Options for connecting to the hosts."""

    connect_timeout: ConnectTimeout = None
    transport: TransportOption = "auto"


@dataclass(frozen=True)
class FileOptions:
    """Options for the destination of the report."""

    output_file: OutputFile = None
    show_secrets: ShowSecrets = False

    def out(self, command: str, form: str) -> Out:
        values = dict(vars(self))
        file = values.pop("output_file")
        return Out(command, form_of(command, form, file), file, **values)


@dataclass(frozen=True)
class HtmlOptions(FileOptions):
    """Options for the destination of a report that can be written as HTML."""

    open_it: Annotated[bool, of_output("--open", help="Open the HTML report (--output-file) in a browser.")] = False


@dataclass(frozen=True)
class ScreenOptions(FileOptions):
    """Options for a report on the terminal."""

    color: ColorWhen = "auto"
    quiet: Quiet = False
    verbose: Annotated[bool, of_output("-v", "--verbose", help="Show all evidence and the checks that passed.")] = False


@dataclass(frozen=True)
class ReportOptions(ScreenOptions, HtmlOptions):
    """Options for the format of the report."""


@dataclass(frozen=True)
class DiagnosisOptions(ReportOptions):
    """Options for a report with diagnoses."""

    fail_on: Annotated[
        FailOn,
        of_output(
            "--fail-on",
            metavar="info|warning|error|never",
            help="Exit with 1 for a diagnosis of this severity or above; with never, "
            "no diagnosis affects the exit code.",
        ),
    ] = "error"


@dataclass(frozen=True)
class SelectOptions:
    """Options that select checks: the checks in ``only`` (None for all checks), except the checks in ``skip``."""

    only: Annotated[
        list[str] | None,
        of_run(
            "--only",
            metavar="CHECK",
            help="Use only the checks with this code, name or category; repeatable.",
            autocompletion=complete_check,
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        of_run(
            "--skip",
            metavar="CHECK",
            help="Omit the checks with this code, name or category; repeatable.",
            autocompletion=complete_check,
        ),
    ] = None

    def codes(self) -> CheckCodes:
        """Return the codes of the selected checks, or None for all checks; raise UsageError for an unknown check."""
        if not self.only and not self.skip:
            return None
        from nccl_doctor.model.register import all_checks

        wanted = _named(self.only) if self.only else all_checks()
        return {check.code for check in wanted} - {check.code for check in _named(self.skip or ())}


def _named(lists: Iterable[str]) -> Iterator[Check]:
    """Yield the checks that the words in ``lists`` select.

    A string in ``lists`` can contain several words, separated by commas.
    """
    for word in (word for text in lists for word in text.split(",")):
        yield from _meant(word.strip())


def _meant(word: str) -> tuple[Check, ...]:
    from nccl_doctor.model.register import all_checks, find

    checks = find(word)
    if not checks:
        import difflib

        names = [text for check in all_checks() for text in (check.code, check.name, check.category)]
        near = difflib.get_close_matches(word, names, 1)
        hint = f'; did you mean "{near[0]}"?' if near else '; "nccl-doctor codes" lists them'
        raise UsageError(f'"{word}" is not the code, name or category of a check{hint}')
    return checks


def among(codes: CheckCodes) -> Callable[[Check], bool]:
    return lambda check: codes is None or check.code in codes


@dataclass(frozen=True)
class KeepOptions:
    """Options for saving the snapshot."""

    save: Annotated[
        Path | None,
        of_output(
            "--save",
            metavar="SNAPSHOT",
            help="Save the collected data in this file, except for user names, secrets, most command-line arguments, "
            "and the values of environment variables unknown to nccl-doctor.",
        ),
    ] = None
    save_whole: Annotated[
        bool,
        of_output(
            "--save-whole",
            help="With --save, save everything, including user names, secrets, command lines and all variables.",
        ),
    ] = False


@dataclass(frozen=True)
class JoinOptions:
    """Options of a check that every node of a job runs."""

    join: Annotated[
        bool,
        of_join(
            "--join",
            help="Check the nodes of a job without SSH: start the same command on every node with the job's launcher. "
            "Node 0 checks all nodes that join. The nodes that stay connected exit with the exit code of node 0.",
        ),
    ] = False
    nnodes: Annotated[
        int | None,
        of_join(
            "--nnodes",
            metavar="N",
            help="Number of nodes of the job.",
            show_default="from the launcher's variables",
            min=1,
            max=65536,
        ),
    ] = None
    node_rank: Annotated[
        int | None,
        of_join(
            "--node-rank",
            metavar="RANK",
            help="Rank of this node, starting at 0.",
            show_default="from the launcher's variables",
            min=0,
        ),
    ] = None
    join_port: Annotated[
        int, of_join("--join-port", metavar="PORT", help="Port on which node 0 listens.", min=1, max=65535)
    ] = 29499
    token_file: Annotated[
        Path | None,
        of_join(
            "--token-file",
            metavar="FILE",
            help="File that contains the secret that all nodes of the job share. Without this option, the secret is "
            "the value of the variable NCDOCTOR_TOKEN.",
        ),
    ] = None
    join_timeout: Annotated[float, of_join("--join-timeout", help="Time limit for all nodes to join.", **_SECONDS)] = (
        300.0
    )


@dataclass(frozen=True)
class WatchOptions:
    """Options for watching a job."""

    watch: Annotated[bool, typer.Option("--watch", help="Watch the job, and report when it hangs or a rank dies.")] = (
        False
    )
    wait: Annotated[
        bool, of_watch("--wait", help="Wait for a job to start; with --keep-watching, also for the next job.")
    ] = False
    every: Annotated[
        float,
        of_watch(
            "--every", metavar="SECONDS", help="Seconds between samples while watching, 1 to 3600.", min=1, max=3600
        ),
    ] = 60.0
    after: Annotated[
        float,
        of_watch(
            "--after",
            metavar="SECONDS",
            help="After this many seconds without progress (1 to 86400), examine the job as hang without --watch does.",
            min=1,
            max=86400,
        ),
    ] = 300.0
    on_hang: Annotated[
        str | None,
        of_watch(
            "--on-hang",
            metavar="COMMAND",
            help="After each report, run this program with its arguments, without a shell. The environment contains "
            "NCDOCTOR_REPORT (path of the report), NCDOCTOR_VERDICT and NCDOCTOR_DIAGNOSIS.",
        ),
    ] = None
    keep_watching: Annotated[
        bool, of_watch("--keep-watching", help="After a report, continue to watch instead of exiting.")
    ] = False
