"""The interpreter that training uses does not start on the host.

What it means: SSH works, but the host has no such Python, or one that is too old (3.8 is the least). The job would
fail there with "No such file or directory" or at its first import.

How we know: the interpreter named for the host (``python`` in the hosts file, else ``python3``) was started over SSH
without a login: what a profile or ``conda activate`` adds to PATH in a terminal is not there, for a launcher's ranks
neither.

Fix: give its full path, ``python: /path/to/env/bin/python`` in the hosts file, for all hosts or for this one; in the
activated environment ``command -v python`` prints it. Or install Python there.

References: bash(1), "INVOCATION": what a shell that sshd starts reads. PEP 569: the life of Python 3.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.model import Finding, Fix, Severity
from nccl_doctor.registry import View, check
from nccl_doctor.snapshot import PythonMissing


@check("NCD105", severity=Severity.ERROR, explains=FOLLOWS)
def python_missing(view: View) -> Iterator[Finding]:
    """One finding for the hosts that miss the same interpreter."""
    return findings(view, PythonMissing, _remedy, joint=":")


def _remedy(failures: tuple[PythonMissing, ...]) -> Fix:
    python = failures[0].facts.python
    return Fix(
        summary=f"Give the full path of the interpreter that training uses, under python: in the hosts file; "
        f"or install Python 3.8 or later there as {python}."
    )
