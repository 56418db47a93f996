"""A login shell has a different environment from a command over SSH.

What it means: the check examined the environment of a command that is run over SSH, but a job that you start from your
own terminal uses a different interpreter or different variables. A launcher that uses SSH (mpirun, DeepSpeed, pdsh)
does not get the variables that `.bashrc` sets after the line at which non-interactive shells stop reading the file. A
common case is NCCL_SOCKET_IFNAME, which `.bashrc` sets on only some hosts.

How we know: the check starts the user's shell once as an interactive login shell without a terminal. In the login
shell, the check determines the path of the interpreter that the hosts file names, and reads the variables for training,
such as NCCL_*, CUDA_* and LD_LIBRARY_PATH. Values in the hosts file apply to login shells and to commands over SSH. The
login shell is started only if torch was not found, or if the host has GPUs or RDMA devices. Shells of the csh family
can't be queried. A startup file that hangs without a terminal is reported only if the interpreter is looked up in PATH.

If only search paths (LD_LIBRARY_PATH, PYTHONPATH) differ, the diagnosis is a note, since torch's wheels find their own
libraries.

Fix: in the hosts file, name the interpreter by its path (`python: /opt/conda/envs/train/bin/python`) and put the
variables under `env`. `nccl-doctor launch` includes the interpreter and the variables of the hosts file in the commands
that it prints.
"""

from collections.abc import Iterator

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.engine import command_way, engines_of
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.system import LoginShell, PythonInfo
from nccl_doctor.text.hostlist import fold, quoted

SEARCHED = frozenset({"LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH"})
"""Variables that tell programs where libraries and modules are. torch's wheels do not need these variables."""


@check("NCD511", phrase="login shell differs", severity=Severity.WARNING, needs=("python",))
def login_environment_differs(view: View) -> Findings:
    groups: dict[tuple[str, ...], list[str]] = {}
    matters: set[tuple[str, ...]] = set()
    for host, facts in view.facts:
        python = known(facts.python)
        if host.node.local or any("login_shell" in engine.lacks(host.node) for engine in engines_of(host.node)):
            continue
        if isinstance(facts.login_shell, Unknown):
            if "/" not in host.node.python:
                yield Unjudged((host.name,), facts.login_shell.reason)
        elif facts.login_shell is not None:
            lines = tuple(_lines(host, python, facts.login_shell))
            login, names = facts.login_shell, facts.login_shell.differing.keys() - host.node.env.keys()
            if lines:
                groups.setdefault(lines, []).append(host.name)
            if names - SEARCHED or (login.prefix is not None and login.prefix != python.prefix):
                matters.add(lines)
    way = command_way(view.snapshot.cluster.nodes[0])
    for lines, hosts in groups.items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"On {fold(hosts)}, the environment of a login shell differs from that of a command run {way}. "
            "The environment of the login shell was not checked.",
            evidence=lines,
            severity=None if lines in matters else Severity.INFO,
            fix="Name the interpreter by its path (python: /path/to/python) and put the variables under env in "
            "the hosts file, so that both environments are the same.",
        )


def _lines(host: Host, judged: PythonInfo, login: LoginShell) -> Iterator[str]:
    way = command_way(host.node)
    if login.prefix is not None and login.prefix != judged.prefix:
        where = f" (environment {login.environment})" if login.environment else ""
        yield f"{host.node.python} is {judged.executable} {way} and {login.python} in a login shell{where}"
    for name, (ssh, shell) in login.differing.items():
        if name not in host.node.env:
            yield f"{name} is {_shown(ssh)} {way} and {_shown(shell)} in a login shell"


def _shown(value: str | None) -> str:
    return "unset" if value is None else quoted(value)
