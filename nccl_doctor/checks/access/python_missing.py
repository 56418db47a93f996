"""The Python interpreter that training uses does not start on the host.

What it means: SSH works, but the interpreter does not exist on the host or is too old (Python 3.8 or later is
required). Other possible causes are a user without permission to run the interpreter, and an interpreter that is
incomplete or was built for a different CPU. The job would fail on the host with "No such file or directory" or at its
first import.

If a PYTHONHOME or PYTHONPATH that is set at login has a wrong value, the interpreter starts only in isolated mode
(``-I``), which ignores these variables.

How we know: the interpreter (``python`` in the hosts file, or ``python3`` by default) was started over SSH without a
login shell. Without a login shell, PATH lacks the directories that a profile or ``conda activate`` adds in a terminal.
The PATH of ranks that a launcher starts over SSH lacks the same directories.

Fix: set the interpreter's full path for all hosts or for this host in the hosts file (``python:
/path/to/env/bin/python``), or install Python on the host. In the activated environment, ``command -v python`` prints
the path of the interpreter.

References: bash(1), "INVOCATION" (files that a shell reads if sshd starts it). PEP 569: the release schedule of Python
3.8.
"""

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.snapshot.access import PythonMissing, PythonProblem
from nccl_doctor.snapshot.system import PythonInfo
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.secrets import part


@check("NCD105", severity=Severity.ERROR, explains=FOLLOWS)
def python_missing(view: View) -> Findings:
    yield from findings(view, PythonMissing, _remedy, joint=":")
    failing = grouped(
        ((facts.python.executable, facts.python.failure), host.name)
        for host, facts in view.facts
        if isinstance(facts.python, PythonInfo) and facts.python.failure is not None
    )
    for (executable, failure), hosts in failing.items():
        end = part(failure, max(len(failure) - _WORDS, 0), len(failure))
        yield Finding(
            hosts=tuple(hosts),
            message=f"{executable} on {fold(hosts)} fails to start in the environment of a training job: {end}.",
            evidence=(f"it runs isolated (-I) from the login's variables, and not without: {failure}",),
            facts={"python": executable, "problem": "broken"},
            fix="A variable set at login breaks it: unset PYTHONHOME and PYTHONPATH in the login shell's start-up "
            "files on the host, or remove what they add (a sitecustomize, or a module named like one of Python's own).",
        )


_WORDS = 120
_REMEDY: dict[PythonProblem, str] = {
    "missing": "Give the full path of the interpreter that training uses, under python: in the hosts file or with "
    "--python; or install Python 3.8 or later on the host as {python}.",
    "too-old": "Give the interpreter that training uses, Python 3.8 or later, by its full path under python: in the "
    "hosts file.",
    "permission": "Let the user run it (its mode, that of the folders above it, a mount with noexec), or give another "
    "interpreter under python: in the hosts file.",
    "directory": "Give the program itself under python: in the hosts file, such as {python}/bin/python.",
    "architecture": "Give that host an interpreter made for its processor, under its own python: in the hosts file.",
    "incomplete": "Build that Python again on the host with its libraries' headers (zlib1g-dev, libffi-dev, "
    "libssl-dev), "
    "or give another interpreter under python: in the hosts file.",
    "library": "It needs an environment that an SSH login does not set (LD_LIBRARY_PATH, a module): have the login's "
    "start-up file set it, or give a Python that starts without it under python: in the hosts file.",
    "memory": "Free memory on the host (free -m), or raise the limit that the login sets there (ulimit -v).",
    "broken": "Its environment is damaged or its base interpreter is gone: create it again, or give another "
    "interpreter under python: "
    "in the hosts file.",
}


def _remedy(failures: tuple[PythonMissing, ...]) -> Fix:
    facts = failures[0].facts
    return Fix(summary=_REMEDY[facts.problem].format(python=facts.python))
