"""The processes behind tests/lab/warm.py: they have imported torch, the probe's modules or nccl-doctor, and fork.

A fork becomes the interpreter that was asked for: its command line and variables are what /proc shows, its modules those
that a fresh one has, and torch; or the tool. What the former starts of the same interpreter through `subprocess` is
forked from it, too, so that the tree of processes is that of plain ones.
"""

import _posixsubprocess
import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import mmap
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from functools import partial
from multiprocessing import process, spawn
from pathlib import Path
from typing import Any, NoReturn

from tests.lab import kernel
from tests.lab.host import WHOLE_HOST
from tests.lab.warm import DOCTOR, KNOWN

WHAT, PATH = sys.argv[1:3]
if WHAT == "torch":
    import torch._inductor  # most of torch, which an optimizer's first step and a flight recorder's first dump import
    import torch.distributed.run  # what this process is for
elif WHAT == "plain":
    importlib.import_module("nccl_doctor.probe.main")  # for what it imports: the probe itself comes with each call
else:
    from tests.cli.warm import prepare

    prepare()
_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_ulong
_fork_exec: Callable[..., int] = getattr(subprocess, "_fork_exec")  # noqa: B009 - not in its stubs
_kept: list[mmap.mmap] = []

NOT_KEPT = ("tests", "__main__", *(["nccl_doctor"] if WHAT == "plain" else []))
_modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] not in NOT_KEPT}
_finders, _hooks = [*sys.meta_path], [*sys.path_hooks]
_places = [place for place in sys.path if place not in (str(Path.cwd()), str(Path(PATH).parent))]


class Server:
    """Starts programs, hands signals on to them, and says how they ended.

    Each is this process's own child: a fork of a fork would copy the page tables twice, which takes longer than most of
    what such a program does.
    """

    def __init__(self, calls: socket.socket) -> None:
        self.calls = calls
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.selector = selectors.DefaultSelector()
        self.selector.register(calls, selectors.EVENT_READ, self.accept)

    def serve(self) -> NoReturn:
        """Takes calls until it is killed."""
        kernel.die_with_parent(signal.SIGKILL)
        gc.freeze()
        while True:
            key, _ = self.selector.select()[0]  # one at a time: what is done for it may end the next
            key.data()

    def accept(self) -> None:
        """Takes a call, whose text is still to come."""
        call, _ = self.calls.accept()
        self.selector.register(call, selectors.EVENT_READ, partial(self.begin, call))

    def begin(self, call: socket.socket) -> None:
        """Starts the program of a call."""
        try:
            pid = start(call, self.own)
        except OSError:  # the caller has gone, or its host
            pid = None
        if pid is None:
            self.close(call)
            return
        ended = os.pidfd_open(pid)
        self.selector.modify(call, selectors.EVENT_READ, partial(self.hear, call, pid))
        self.selector.register(ended, selectors.EVENT_READ, partial(self.end, call, pid, ended))

    def hear(self, call: socket.socket, pid: int) -> None:
        """Hands a signal on; where the caller has gone, its program ends."""
        try:
            number = int(call.recv(100) or signal.SIGKILL)
        except ConnectionError:
            number = signal.SIGKILL
        os.kill(pid, number)  # it was not waited for yet
        if number == signal.SIGKILL:
            self.selector.unregister(call)

    def end(self, call: socket.socket, pid: int, ended: int) -> None:
        """Says how a program ended."""
        with contextlib.suppress(ConnectionError):  # the caller has gone
            call.send(b"%d" % os.waitpid(pid, 0)[1])
        self.selector.unregister(ended)
        os.close(ended)
        self.close(call)

    def close(self, call: socket.socket) -> None:
        """Ends a call."""
        if call in self.selector.get_map():
            self.selector.unregister(call)
        call.close()


def start(call: socket.socket, own: int) -> int | None:
    """Starts the program that a call asks for; its PID, None where nothing was asked. ``own`` is our PID namespace."""
    text, streams, _, _ = socket.recv_fds(call, 1 << 20, 3)
    if not text:
        return None
    caller, user, _ = struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    wish: dict[str, Any] = json.loads(text) if streams else {"init": caller}
    with contextlib.ExitStack() as ours:
        for file in streams:
            ours.callback(os.close, file)
        there = os.pidfd_open(wish["init"] or caller)
        ours.callback(os.close, there)
        affinity, nice = os.sched_getaffinity(caller), os.getpriority(os.PRIO_PROCESS, caller)
        if wish["init"] is not None:
            kernel.setns(there, kernel.CLONE_NEWPID)  # in a PID namespace are those who are born into it
            ours.callback(kernel.setns, own, kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            try:
                kernel.die_with_parent(signal.SIGKILL)
                if streams:
                    run_for_test(wish, dict(enumerate(streams)), there)
                os.sched_setaffinity(0, affinity)
                os.setpriority(os.PRIO_PROCESS, 0, nice)
                with contextlib.suppress(ConnectionError, FileNotFoundError, ProcessLookupError):  # the caller has gone
                    run_for_caller(call, text.decode(errors="surrogateescape").split("\0"), caller, there, user)
            except BaseException:  # noqa: BLE001 - there is nobody to tell
                traceback.print_exc()
            finally:
                os._exit(255)
    if streams:
        with contextlib.suppress(ConnectionError):  # the caller has gone, as will be heard
            call.send(b"%d" % pid)
    return pid


def run_for_test(wish: dict[str, Any], files: dict[int, int], there: int) -> NoReturn:
    """Runs what a test of the suite types (tests/cli/program.py) in this process."""
    # without a host, out of what the server sees of /etc
    kernel.setns(there, kernel.CLONE_NEWNS if wish["init"] is None else WHOLE_HOST & ~kernel.CLONE_NEWPID)
    os.setsid()
    os.chdir(wish["cwd"])
    hold(files)
    if wish["user"] != 0:
        kernel.become(wish["user"])
        kernel.die_with_parent(signal.SIGKILL)  # another user's process has forgotten it
    become([sys.executable, str(DOCTOR), *wish["arguments"]], wish["env"])


def run_for_caller(call: socket.socket, words: list[str], caller: int, there: int, user: int) -> NoReturn:
    """Runs one program in this process where another one waits for it, the caller by /proc of this machine."""
    files = inherited(caller, there)
    folder = os.open(f"/proc/{caller}/cwd", os.O_PATH)
    limits, capabilities = limits_of(caller), int(status_of(caller)["CapBnd"], 16)
    call.send(b"taken")
    kernel.setns(there, WHOLE_HOST & ~kernel.CLONE_NEWPID)
    os.setsid()
    os.fchdir(folder)
    hold(files)
    for number, limit in enumerate(limits):
        resource.setrlimit(number, limit)
    os.umask(int(words[0]))
    kernel.lose_capabilities(capabilities)
    if user != 0:
        kernel.become(user)
        kernel.die_with_parent(signal.SIGKILL)  # another user's process has forgotten it
    count = int(words[1]) + 3
    program = [sys.executable, str(DOCTOR)] if WHAT == "tool" else [words[2]]
    become([*program, *words[3:count]], dict(one.split("=", 1) for one in words[count:]))


def status_of(caller: int) -> dict[str, str]:
    """What /proc tells of a process, by name."""
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{caller}/status").read_text().splitlines())


def limits_of(caller: int) -> list[tuple[int, int]]:
    """What a program may take, by the kernel's order, which /proc shows to those who may not ask prlimit(2)."""
    lines = Path(f"/proc/{caller}/limits").read_text().splitlines()[1:]
    words = [line[25:].replace("unlimited", str(resource.RLIM_INFINITY)).split() for line in lines]
    return [(int(soft), int(hard)) for soft, hard, *_ in words]


def inherited(caller: int, process: int) -> dict[int, int]:
    """Descriptors of ours for the files that a program has from who started it, by its own numbers of them."""
    found = {}
    for entry in Path(f"/proc/{caller}/fdinfo").iterdir():
        flags = entry.read_text().partition("flags:")[2].split()[0]
        if not int(flags, 8) & os.O_CLOEXEC:
            found[int(entry.name)] = kernel.take_file(process, int(entry.name))
    return found


def hold(files: dict[int, int]) -> None:
    """Gives this process these files under these numbers, and no other."""
    begin = max([*files, *files.values()]) + 1
    for place, (number, file) in enumerate(files.items(), begin):
        os.dup2(file, place)
        files[number] = place
    os.closerange(0, begin)
    for number, place in files.items():
        os.dup2(place, number)
    os.closerange(begin, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def become(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Runs a command line of the interpreter in this process, and ends it."""
    sys.modules.clear()
    sys.modules.update(_modules)
    sys.meta_path[:], sys.path_hooks[:], sys.path[:] = _finders, _hooks, _places
    sys.path_importer_cache.clear()
    os.environ.clear()
    os.environ.update(environment)
    show(words, environment)
    tempfile.tempdir = None  # torch has looked TMPDIR up
    process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]  # not in its stubs
    faulthandler.disable()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.executable, sys.orig_argv = words[0], words
    spawn.set_executable(words[0])
    options = words[1:]
    rest: list[str] = []
    isolated = unbuffered = False
    while options and not rest:
        word = options.pop(0)
        if word == "-I":
            isolated = True
        elif word == "-u":
            unbuffered = True
        elif word == "-S":
            sys.path[:] = [place for place in sys.path if not place.endswith("site-packages")]
        elif word in ("-B", "-E", "-s"):
            continue
        elif word in ("-c", "-m"):
            rest = [word, *options]
        else:
            rest = ["", word, *options]
    sys.stdin = _stream(0, "r", errors="surrogateescape")
    sys.stdout = _stream(1, "w", errors="surrogateescape", write_through=unbuffered)
    sys.stderr = _stream(2, "w", errors="backslashreplace", line_buffering=True)
    if not isolated and "PYTHONPATH" in environment:
        sys.path[:0] = environment["PYTHONPATH"].split(":")
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")  # as the module site does
    status = run(rest, isolated)
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _stream(number: int, mode: str, **options: Any) -> Any:
    try:
        os.fstat(number)
    except OSError:
        return None
    stream: Any = open(number, mode, encoding="utf-8", errors=options.pop("errors"), closefd=False)  # noqa: SIM115 - the interpreter's own
    if options:
        stream.reconfigure(**options)
    return stream


def run(rest: list[str], isolated: bool) -> int:
    """Runs ``-c CODE``, ``-m MODULE`` or a file with arguments as the main module; its exit status."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    kind, what, *arguments = rest
    try:
        if kind == "-m":
            sys.argv = ["-m", *arguments]
            sys.path[:0] = [] if isolated else [str(Path.cwd())]
            sys.modules.pop(what, None)
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        elif kind == "-c":
            sys.argv = ["-c", *arguments]
            sys.path[:0] = [] if isolated else [""]
            exec(compile(what, "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [what, *arguments]
            sys.path[:0] = [] if isolated else [str(Path(what).resolve().parent)]
            main.__file__ = what
            exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
        traceback.print_exc()
        return 1
    return 0


def show(words: list[str], environment: dict[str, str]) -> None:
    """Has /proc tell of this process what it tells of one that was started so."""
    _libc.prctl(_PR_SET_NAME, Path(words[0]).name.encode(), 0, 0, 0)
    arguments = b"".join(os.fsencode(word) + b"\0" for word in words)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    place = mmap.mmap(-1, len(arguments) + len(variables), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place.write(arguments + variables)
    _kept.append(place)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(place))
    middle, end = begin + len(arguments), begin + len(arguments) + len(variables)
    fields = [int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:]]
    code, stack, data = fields[22:24], fields[24], fields[41:44]  # proc(5), fields 26 to 28 and 45 to 47
    layout = struct.pack("=12Q2I", *code, *data, _libc.sbrk(0), stack, begin, middle, middle, end, 0, 0, 2**32 - 1)
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), ctypes.c_ulong(0)) == -1:
        raise OSError(ctypes.get_errno(), "prctl PR_SET_MM_MAP")


def fork_or_exec(*wish: Any) -> int:
    """As `_posixsubprocess.fork_exec`, but what starts this interpreter as root with variables of its own is a fork."""
    words = [os.fsdecode(word) for word in wish[0]]
    if words[:1] not in ([PATH], [sys.executable]) or len(wish) != 23 or any(part is not None for part in wish[17:20]):
        return _fork_exec(*wish)
    environment = dict(os.environ)
    if wish[5] is not None:
        environment = dict(os.fsdecode(item).split("=", 1) for item in wish[5])
    if any(name.startswith("PYTHON") and name not in KNOWN for name in environment):
        return _fork_exec(*wish)
    pid = os.fork()
    if pid == 0:
        try:
            _prepare(wish)
            become(words, environment)
        except BaseException:  # noqa: BLE001 - there is nobody to tell
            traceback.print_exc()
            os._exit(255)
    return pid


def _prepare(wish: tuple[Any, ...]) -> None:
    """What happens between fork and exec; the error pipe's end says that all went well."""
    kept, folder, stdin, stdout, stderr, error = wish[3], wish[4], wish[6], wish[9], wish[11], wish[13]
    new_session, group, mask, before = wish[15], wish[16], wish[20], wish[21]
    for number, stream in enumerate((stdin, stdout, stderr)):
        if stream == -1:
            continue
        if stream == number:
            os.set_inheritable(number, True)
        else:
            os.dup2(stream, number)
    if folder is not None:
        os.chdir(folder)
    if mask >= 0:
        os.umask(mask)
    if new_session:
        os.setsid()
    if group >= 0:
        os.setpgid(0, group)
    if before is not None:
        before()
    begin = 3
    for descriptor in sorted(one for one in kept if one > 2 and one != error):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


if __name__ == "__main__":
    if WHAT != "tool":
        setattr(subprocess, "_fork_exec", fork_or_exec)  # noqa: B010 - not in its stubs
        setattr(_posixsubprocess, "fork_exec", fork_or_exec)  # noqa: B010 - multiprocessing's
    if WHAT == "torch":
        assert torch.distributed.is_gloo_available()
    Server(socket.socket(fileno=0)).serve()
