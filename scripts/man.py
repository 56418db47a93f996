"""Make scripts/nccl-doctor.1 from the help of the commands: ``python scripts/man.py``; ``--check`` compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command

from nccl_doctor.cli.main import COMMANDS, EXAMPLES, FIRST, app, doctor

PAGE = Path(__file__).parents[1] / "scripts" / "nccl-doctor.1"
EXITS = (
    ("0", "Everything was checked, and there was no error."),
    ("1", "An error was found; with --fail-on warning, also a warning."),
    ("2", "Wrong usage, or a fault in the hosts file."),
    ("3", "No error, but something could not be judged."),
    ("130", "Interrupted; nothing is left running on any host."),
)
FILES = (
    ("~/.ssh/config, ~/.ssh/known_hosts", "Read as ssh reads them."),
    (
        "$XDG_STATE_HOME/nccl-doctor, ~/.local/state/nccl-doctor",
        "The last check of each list of hosts, for launch; what fix ran, for fix --undo.",
    ),
)
VARIABLES = (
    ("MASTER_ADDR, MASTER_PORT", "The master, where nothing else says it."),
    ("SLURM_JOB_ID, SLURM_JOB_NODELIST", "The hosts, where none are named."),
    ("NO_COLOR", "Turns colour off."),
    ("NCDOCTOR_TRACEBACK", "Shows the traceback of a fault of nccl-doctor itself."),
)


def escaped(text: str) -> str:
    """Return text that roff prints as it stands: backslashes, dashes, and what would begin a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)
    return "\\&" + text if text.startswith((".", "'")) else text


def rows(pairs: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yield the lines of a list of terms."""
    for term, words in pairs:
        yield from (".TP", f".B {escaped(term)}", escaped(words))


def command(name: str) -> Iterator[str]:
    """Yield the section of a command: what it does, examples, arguments and options."""
    made = get_command(app(name)).commands[name]  # type: ignore[attr-defined]  # it is a group
    summary, *more = (line for line in (made.help or "").partition("\b")[0].split("\n\n") if line.strip())
    arguments = [f"[{one.metavar}]" for one in made.params if one.param_type_name == "argument" and one.metavar]
    yield from (
        f".SS nccl\\-doctor {escaped(' '.join([name, '[options]', *arguments]))}",
        escaped(" ".join(summary.split())),
    )
    for paragraph in more:
        yield from (".PP", escaped(" ".join(paragraph.split())))
    yield from (".PP", ".nf", ".RS", *map(escaped, EXAMPLES[name]), ".RE", ".fi")
    for parameter in sorted(made.params, key=lambda one: one.param_type_name != "argument"):
        is_option = parameter.param_type_name == "option"
        words = ", ".join(sorted(parameter.opts, key=len)) if is_option else parameter.metavar or parameter.name
        value = parameter.metavar if is_option and not parameter.is_flag else ""
        yield from (".TP", f".B {escaped(' '.join(filter(None, (words, value))))}", escaped(parameter.help or ""))


def page() -> str:
    """Return the whole page, in roff's macros for manual pages (man(7))."""
    first = [line.strip() for line in FIRST.replace("\b", "").splitlines() if line.strip()]
    lines = [
        '.TH NCCL\\-DOCTOR 1 "" "nccl\\-doctor" "User Commands"',
        ".SH NAME",
        "nccl\\-doctor \\- cluster preflight and NCCL diagnostics for PyTorch jobs",
        ".SH SYNOPSIS",
        ".B nccl\\-doctor",
        "COMMAND [options] [arguments]",
        ".SH DESCRIPTION",
        escaped(" ".join((doctor.__doc__ or "").split())),
        ".PP",
        "What most people want first:",
        ".PP",
        ".nf",
        ".RS",
        *map(escaped, first),
        ".RE",
        ".fi",
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        lines += command(name)
    lines += [".SH EXIT STATUS", *rows(EXITS), ".SH FILES", *rows(FILES), ".SH ENVIRONMENT", *rows(VARIABLES)]
    lines += [
        ".SH SEE ALSO",
        ".BR ssh (1),",
        ".BR ssh_config (5).",
        "nccl\\-doctor explain lists the topics of its own pages.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it; return 1 where it is out of date."""
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
