"""The options that commands share, with their help texts.

An option is an annotated type; those that go together are a dataclass, which a command takes as one keyword. What
:func:`flattened` makes of such a command is what typer reads.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nccl_doctor.cli import choices
from nccl_doctor.report.render import FORMS
from nccl_doctor.transport.register import MODULES

if TYPE_CHECKING:
    from nccl_doctor.cli.output import Out
    from nccl_doctor.cluster import Cluster
    from nccl_doctor.inventory.kube_request import KubeRequest
    from nccl_doctor.inventory.overrides import Overrides

Color = choices.Color
FailOn = choices.FailOn

of_hosts = partial(typer.Option, rich_help_panel="Hosts and how to reach them")
of_job = partial(typer.Option, rich_help_panel="The job, where the hosts file says nothing else")
of_run = partial(typer.Option, rich_help_panel="What is done")
of_report = partial(typer.Option, rich_help_panel="The report")
of_keep = partial(typer.Option, rich_help_panel="What is kept")


def _transport(kind: str) -> str:
    if kind not in MODULES:
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(map(repr, MODULES))}.")
    return kind


def output(command: str) -> typer.models.OptionInfo:
    """``-o`` of a command, with the forms that it has; :mod:`nccl_doctor.cli.output` refuses others."""
    option: typer.models.OptionInfo = of_report(
        "-o", "--output", metavar="|".join(FORMS[command]), help="Form of the output."
    )
    return option


Output = Annotated[str, output("check")]
OutputFile = Annotated[
    Path | None, of_report("--output-file", metavar="FILE", help="Write the report here, not to stdout.")
]
ColorWhen = Annotated[Color, of_report("--color", help="Colour; NO_COLOR is honoured.")]
Quiet = Annotated[bool, of_report("-q", "--quiet", help="Only what was found; no progress.")]
ConnectTimeout = Annotated[
    float | None,
    of_hosts(
        "--connect-timeout",
        metavar="SECONDS",
        help="For each host to answer; a login that has begun has three times as long.",
        min=1,
        show_default="10, or ConnectTimeout of ~/.ssh/config",
    ),
]
Timeout = Annotated[float, of_run("--timeout", metavar="SECONDS", help="For the whole run.", min=1)]
TimeoutWithSmoke = Annotated[
    float | None,
    of_run(
        "--timeout",
        metavar="SECONDS",
        help="For the whole run.",
        min=1,
        show_default="300, or 240 more than --smoke-timeout",
    ),
]
Transport = Annotated[
    str, of_hosts("--transport", metavar="|".join(MODULES), callback=_transport, help="How hosts are reached.")
]
Save = Annotated[Path | None, of_keep("--save", metavar="SNAPSHOT", help="Keep all that was seen in this file.")]
From = Annotated[
    Path | None, of_keep("--from", metavar="SNAPSHOT", help="Judge what --save kept; no host is contacted.")
]
Python = Annotated[
    str | None, of_hosts("--python", metavar="PATH", help="The interpreter that training uses, on every host.")
]
Kube = Annotated[
    str | None,
    of_hosts("--kube", metavar="[KIND/NAME]", help="The pods of job/NAME, pytorchjob/NAME, …; or those of -l."),
]
Namespace = Annotated[str | None, of_hosts("-n", "--namespace", metavar="NS", help="Of --kube's pods.")]
Selector = Annotated[str | None, of_hosts("-l", "--selector", metavar="LABELS", help="Of --kube's pods.")]
SlurmJob = Annotated[
    str | None,
    of_hosts(
        "--slurm-job",
        metavar="ID",
        help="The nodes of this Slurm job, by steps in it, without SSH; -w chooses among them.",
        show_default="inside an allocation, its own",
    ),
]
Inside = Annotated[
    str | None,
    of_hosts(
        "--inside",
        metavar="RUNTIME:NAME",
        help="The container on each host: docker, podman, nerdctl or apptainer; enter:PID is a process' namespaces.",
    ),
]
SmokeTimeout = Annotated[float, of_run("--smoke-timeout", metavar="SECONDS", help="Deadline of the all-reduce.", min=1)]


@dataclass(frozen=True)
class NameOptions:
    """Hosts by their names."""

    where: Annotated[str | None, of_hosts("-w", metavar="LIST", help="Hosts by name: 'node[01-04,07]'.")] = None
    exclude: Annotated[str | None, of_hosts("-x", metavar="LIST", help="Hosts to leave out.")] = None
    kube: Kube = None
    namespace: Namespace = None
    selector: Selector = None
    slurm_job: SlurmJob = None
    container_image: Annotated[
        str | None, of_hosts("--container-image", metavar="IMAGE", help="Look in this container, as srun's (pyxis).")
    ] = None
    container_name: Annotated[
        str | None, of_hosts("--container-name", metavar="NAME", help="Look in this container of the job (pyxis).")
    ] = None
    tree: Annotated[
        bool | None,
        of_hosts("--tree/--no-tree", help="One srun for up to 64 nodes of the job.", show_default="above 512 nodes"),
    ] = None

    def cluster(self, said: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """The hosts of a run, as :func:`nccl_doctor.inventory.load.load` has it.

        Args:
            said: what options say in place of a hosts file.
            path: the hosts file.
            transport: how they will be reached; None: not at all.
        """
        from nccl_doctor.errors import UsageError
        from nccl_doctor.inventory.load import load
        from nccl_doctor.inventory.slurm import request

        if self.kube is not None and self.slurm_job is not None:
            raise UsageError("--kube and --slurm-job both name the hosts; give one of them")
        return load(
            path,
            where=self.where,
            exclude=self.exclude,
            environ=os.environ,
            engine=self._kube() or request(vars(self), transport, os.environ, named=path is not None),
            overrides=said,
        )

    def rendered(self, image: str | None, python: str | None, *, render: bool) -> str:
        """What ``--render`` prints."""
        from nccl_doctor.errors import UsageError
        from nccl_doctor.inventory.kube import rendered

        kube = self._kube()
        if kube is None or not render:
            raise UsageError("--render prints a Job for --kube's pods, and --image names theirs; say --kube --render")
        return rendered(kube, image, python)

    def _kube(self) -> KubeRequest | None:
        from nccl_doctor.inventory.kube_request import request

        return request(self.kube, self.selector, self.namespace)


@dataclass(frozen=True)
class HostOptions(NameOptions):
    """The hosts of a run."""

    hosts: Annotated[
        str | None,
        typer.Argument(metavar="HOSTS", help="Hosts file (-: stdin); else -w, the Slurm job here, or this machine."),
    ] = None

    def cluster(self, said: Overrides, path: str | None = None, transport: str | None = None) -> Cluster:
        """As above; the hosts file is HOSTS."""
        return super().cluster(said, path or self.hosts, transport)


@dataclass(frozen=True)
class LoginOptions:
    """How the hosts are logged in to, and with what the probe runs there."""

    python: Python = None
    user: Annotated[str | None, of_hosts("--user", metavar="NAME", help="Who logs in to the hosts.")] = None
    port: Annotated[int | None, of_hosts("--port", metavar="PORT", help="Where sshd listens on the hosts.", min=1)] = (
        None
    )

    inside: Inside = None

    def overrides(self) -> Overrides:
        """What was said in place of the hosts file."""
        from nccl_doctor.inventory.overrides import Overrides

        return Overrides(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class JobOptions(LoginOptions):
    """What the hosts file could say, too."""

    master_port: Annotated[int | None, of_job("--master-port", metavar="PORT", help="The master port.", min=1)] = None
    master_addr: Annotated[str | None, of_job("--master-addr", metavar="HOST", help="The master's address.")] = None
    nproc_per_node: Annotated[
        int | None, of_job("--nproc-per-node", metavar="N", help="Ranks on each host.", min=1)
    ] = None
    env: Annotated[
        list[str] | None, of_job("--env", metavar="NAME=VALUE", help="A variable as the job will have it.")
    ] = None


@dataclass(frozen=True)
class ReachOptions:
    """How hosts are reached."""

    connect_timeout: ConnectTimeout = None
    transport: Transport = "auto"


@dataclass(frozen=True)
class FileOptions:
    """Where the report goes."""

    output_file: OutputFile = None
    open_it: Annotated[bool, of_report("--open", help="Open the HTML report of --output-file in the browser.")] = False

    def out(self, command: str, form: str) -> Out:
        """Where the report of a command goes, in this form."""
        from nccl_doctor.cli.output import Out

        return Out(command, form, self.output_file, open_it=self.open_it)


@dataclass(frozen=True)
class ReportOptions(FileOptions):
    """How the report is shown."""

    color: ColorWhen = Color.AUTO
    quiet: Quiet = False
    verbose: Annotated[bool, of_report("-v", "--verbose", help="Every check, and all that was seen.")] = False

    def out(self, command: str, form: str) -> Out:
        """As above, with colour and detail."""
        return super().out(command, form)._replace(color=self.color, quiet=self.quiet, verbose=self.verbose)


@dataclass(frozen=True)
class DiagnosisOptions(ReportOptions):
    """The same of a report with diagnoses."""

    fail_on: Annotated[FailOn, of_report("--fail-on", help="Exit 1 from this severity on.")] = FailOn.ERROR

    def out(self, command: str, form: str) -> Out:
        """As above, with the least severity that fails."""
        return super().out(command, form)._replace(fail_on=self.fail_on)


@dataclass(frozen=True)
class SelectOptions:
    """Which diagnoses are wanted: all of ``only`` (None: all there are), but none of ``skip``."""

    only: Annotated[list[str] | None, of_run("--only", metavar="CHECK", help="Only this code, name or category.")] = (
        None
    )
    skip: Annotated[list[str] | None, of_run("--skip", metavar="CHECK", help="Not this code, name or category.")] = None


@dataclass(frozen=True)
class KeepOptions:
    """Where what was seen is kept."""

    save: Save = None
    save_whole: Annotated[
        bool, of_keep("--save-whole", help="With --save: also user names, all variables and command lines.")
    ] = False


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its dataclasses as a parameter of its own, in their place and order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def flat(**given: Any) -> None:  # noqa: ANN401 - each option has its own type
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    def parameters() -> Iterator[inspect.Parameter]:
        for name, parameter in inspect.signature(command).parameters.items():
            if name in groups:
                types = get_type_hints(groups[name], include_extras=True)
                yield from (_parameter(one, types[one.name]) for one in fields(groups[name]))
            else:
                yield parameter.replace(annotation=hints[name])

    shown = list(parameters())
    flat.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # inspect reads it, mypy does not know
    flat.__annotations__ = {one.name: one.annotation for one in shown}
    return flat


def _parameter(one: Field[Any], kind: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    default = inspect.Parameter.empty if one.default is MISSING else one.default
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
