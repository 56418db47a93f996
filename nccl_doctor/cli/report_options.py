"""The options that say what is judged, how it is shown, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from nccl_doctor.cli.choices import Color, FailOn
from nccl_doctor.cli.options import ColorWhen, OutputFile, Quiet, Save, ShowSecrets, of_keep, of_report, of_run

if TYPE_CHECKING:
    from nccl_doctor.cli.output import Out


@dataclass(frozen=True)
class FileOptions:
    """Where the report goes."""

    output_file: OutputFile = None
    open_it: Annotated[bool, of_report("--open", help="Open the HTML report of --output-file in the browser.")] = False
    show_secrets: ShowSecrets = False

    def out(self, command: str, form: str) -> Out:
        """Where the report of a command goes, in this form."""
        from nccl_doctor.cli.output import Out

        return Out(command, form, self.output_file, open_it=self.open_it, show_secrets=self.show_secrets)


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
