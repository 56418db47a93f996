"""Programs for a lab's hosts that have imported already what they import: forks of processes that all tests share.

To import torch takes longer than all the rest of an all-reduce, and each of its processes imports it; to start
nccl-doctor takes longer than what most of its calls do. The files that `interpreter` and `tool` make are a ``python``
and an ``nccl-doctor`` like any other to who starts them: the program runs on the caller's host, with its user,
arguments, variables, folder, limits and streams (tests/lab/warm_server.py). What is no fork's to have is left to the
plain program: most of Python's own variables. An interpreter goes by the name it was started by, a link's too.

One thing differs: the program's parent is not a process of that host. The caller waits beside it, without a command line.
"""

import atexit
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from nccl_doctor.text.machine import thread_safe_cache
from tests.lab.plan import NSSWITCH
from tests.patience import LONG_S

KNOWN = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""Those of Python's own variables that a fork can obey."""

DOCTOR = Path(sys.executable).parent / "nccl-doctor"

_CALLS = "calls"
_servers: list["subprocess.Popen[bytes]"] = []  # a fork of the suite keeps them, too, that are its parent's to end
_PROJECT = Path(__file__).resolve().parents[2]
_CALLER = """\
#!/usr/bin/perl
for (keys %ENV) {{
    exec {plain}, @ARGV if /^PYTHON/ && !/^({known})$/;
}}
socket(CALLS, 1, 5, 0) and connect(CALLS, pack("S a108", 1, "{place}")) or die "{place}: $!";
syswrite(CALLS, join("\\0", umask, scalar(@ARGV), $0, @ARGV, map {{ "$_=$ENV{{$_}}" }} keys %ENV));
sysread(CALLS, $_, 100);
for my $name ("INT", "TERM", "HUP") {{
    $SIG{{$name}} = sub {{ syswrite(CALLS, {{"INT", 2, "TERM", 15, "HUP", 1}}->{{$name}}) }};
}}
close(STDIN); close(STDOUT); close(STDERR);
$0 = "";
$status = 9;
until (defined($read = sysread(CALLS, $status, 100))) {{}}
$status = 9 unless $read;
exit($status >> 8) unless $status & 127;
$SIG{{$_}} = "DEFAULT" for ("INT", "TERM", "HUP");
kill($status & 127, $$);
"""
"""What waits beside the program: Debian's own Perl starts in 2 ms. Signals go on to the program, and its end comes back."""


@thread_safe_cache
def interpreter() -> str:
    """Path of an interpreter that has torch; it lasts as long as this process."""
    return str(_serve("python3", "torch", sys.executable))


@thread_safe_cache
def plain() -> str:
    """Path of an interpreter without torch, which it finds as others do; it lasts as long as this process."""
    return str(_serve("python3", "plain", sys.executable))


@thread_safe_cache
def tool() -> str:
    """Path of an nccl-doctor, in a folder of its own; it lasts as long as this process."""
    return str(_serve("nccl-doctor", "tool", str(DOCTOR)))


def calls() -> Path:
    """Socket of the server behind `tool`, which tests call themselves (tests/cli/program.py)."""
    return Path(tool()).with_name(_CALLS)


def start() -> None:
    """Begins all three, for forks of this process to share."""
    for one in (tool, plain, interpreter):
        one()


def _serve(name: str, what: str, plain: str) -> Path:
    folder = Path(sys.prefix) / f"warm-{what}-{os.getpid()}"  # where hosts see it
    for left in folder.parent.glob("warm-*-*"):  # of forks that were killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    path, place = folder / name, folder / _CALLS
    path.write_text(_CALLER.format(plain=f'"{plain}"', known="|".join(KNOWN), place=place))
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
        calls.bind(str(place))
        place.chmod(0o666)
        calls.listen(100)
        names, code = folder / "nsswitch.conf", folder / "warm_server.pyc"
        names.write_text(NSSWITCH)  # glibc keeps what it read first, on another host's root, too
        # a rank's stack has nothing to say of who started it
        py_compile.compile(str(Path(__file__).with_name("warm_server.py")), str(code), "<frozen warm_server>")
        command = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"', str(names)]
        variables = {
            "PYTHONPATH": str(_PROJECT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
        }
        server = subprocess.Popen(
            [*command, sys.executable, str(code), what, str(path)],
            stdin=calls.fileno(),
            cwd=_PROJECT,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    _servers.append(server)

    def end() -> None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(LONG_S)
        shutil.rmtree(folder)

    atexit.register(end)
    return path
