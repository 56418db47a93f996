"""A process that imports the tool once and forks for each call of it; `tests/cli/program.py` talks to it.

A call is a process of its own, with the arguments, variables, folder and streams it was given, on a host of a lab where
its init is named; only the start of the interpreter and its imports, most of what a call on the command line costs, are
shared. A call with a fourth stream, a socket, is answered at once, and what becomes of it is told there. The process
ends with the socket on its standard input.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import socket
import sys
import traceback
from typing import Any, NoReturn

import typer.main

import nccl_doctor
from nccl_doctor.cli import main
from nccl_doctor.collect.connect.start import bundle
from nccl_doctor.inventory.load import load
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.reader import all_wordings
from nccl_doctor.report.html import document
from nccl_doctor.text.secrets import without_secrets
from tests.checks.snapshots import patched
from tests.lab import kernel
from tests.lab.host import enter
from tests.planted import PLANTED


def prepare() -> None:
    """Makes what calls make of the package alone, whatever their arguments: modules, command lines, patterns, templates."""
    for found in pkgutil.walk_packages(nccl_doctor.__path__, "nccl_doctor."):
        if not found.name.startswith(("nccl_doctor.probe.", "nccl_doctor.__main__")):
            importlib.import_module(found.name)
    apps = {name: main.app(name) for name in (*main.COMMANDS, "")}
    commands = {made: typer.main.get_command(made) for made in apps.values()}
    setattr(main, "app", lambda first="": apps.get(first, apps[""]))  # noqa: B010 - a function of its module
    setattr(typer.main, "get_command", commands.__getitem__)  # noqa: B010 - likewise
    for command in commands.values():
        for one in (command, *getattr(command, "commands", {}).values()):
            for parameter in one.params:
                parameter.get_runtime_param()
    all_wordings()
    templates = document._environment()
    for name in templates.list_templates(["html"]):
        templates.get_template(name)
    for line, _ in PLANTED.values():
        without_secrets(line)
    judge(patched({}), "check")
    bundle()
    load(None, where="node1", exclude=None, environ={})


def serve(calls: socket.socket) -> None:
    """Takes a call, forks, and answers with its wait status, until the other end is closed."""
    prepare()
    gc.collect()
    gc.freeze()  # what was imported is no fork's to look through
    while True:
        text, streams, _, _ = socket.recv_fds(calls, 1 << 20, 4)
        if not text:
            return
        pid = os.fork()
        if pid == 0:
            calls.close()
            if len(streams) > 3 and os.fork() != 0:
                os._exit(0)
            become(json.loads(text), streams)
        for stream in streams:
            os.close(stream)
        calls.send(json.dumps(os.waitpid(pid, 0)[1]).encode())


def watch(caller: socket.socket, pid: int) -> NoReturn:
    """Tells the PID of a call that nobody waits for yet, and its wait status once it has one."""
    caller.send(json.dumps(pid).encode())
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        caller.send(json.dumps(status).encode())
    os._exit(0)


def become(call: dict[str, Any], streams: list[int]) -> None:
    """Runs the tool and leaves, as the console script does."""
    more = streams[3:]
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    if call["init"] is not None:
        enter(call["init"])
        if (pid := os.fork()) != 0:  # in a PID namespace are those who are born into it
            if more:
                watch(socket.socket(fileno=more[0]), pid)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
        if call["user"] != 0:
            kernel.become(call["user"])
    # of those that are there it was asked once whether they are files or pipes
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115 - the process's own, as those below
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    sys.argv = ["nccl-doctor", *call["arguments"]]
    try:
        main.main()
        code: object = 0
    except SystemExit as left:
        code = left.code
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
