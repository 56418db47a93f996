"""An interpreter for a lab's hosts that has imported torch already: a fork of one process that all tests share.

To import torch takes longer than all the rest of an all-reduce, and each of its processes imports it. The file that
`interpreter` makes is a ``python`` like any other to who starts it: the program runs on the caller's host, with its
user, arguments, variables, folder, limits and streams (tests/lab/warm_server.py). What is no fork's to have is left to
the plain interpreter: most of Python's own variables.

One thing differs: the program's parent is no process of that host. The caller waits beside it, without a command line.
"""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.patience import LONG_S

KNOWN = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""Those of Python's own variables that a fork can obey."""

_PROJECT = Path(__file__).resolve().parents[2]
_CALLER = """\
#!{python} -IS
import json, os, resource, signal, socket, sys
own = [name for name in os.environ if name.startswith("PYTHON") and name not in {known!r}]
if own:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with open("/proc/self/stat") as file:
    begin, end = map(int, file.read().rpartition(")")[2].split()[45:47])
calls = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
calls.connect({place!r})
call = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "umask": os.umask(0)}}
call["limits"] = [resource.getrlimit(number) for number in range(16)]
socket.send_fds(calls, [json.dumps(call).encode()], [0, 1, 2])
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(begin)
    memory.write(bytes(end - begin))
for standard in (0, 1, 2):
    os.close(standard)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: calls.send(b"%d" % number))
status = int(calls.recv(100) or b"9")
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""
"""What waits beside the program. Signals go on to it, and so does its end, and its end comes back."""


@cache
def interpreter() -> str:
    """Path of the interpreter, which lasts as long as this process."""
    folder = Path(sys.prefix) / f"warm-{os.getpid()}"  # where hosts see it; each of the suite's workers has its own
    for left in folder.parent.glob("warm-*"):  # of workers that were killed
        if not Path("/proc", left.name.removeprefix("warm-")).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    path, place = folder / "python3", folder / "calls"
    path.write_text(_CALLER.format(python=sys.executable, known=KNOWN, place=str(place)))
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
        calls.bind(str(place))
        place.chmod(0o666)
        calls.listen(100)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.warm_server", str(path)],
            stdin=calls.fileno(),
            cwd=_PROJECT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8"},
            start_new_session=True,
        )

    def end() -> None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(LONG_S)
        shutil.rmtree(folder)

    atexit.register(end)
    return str(path)
