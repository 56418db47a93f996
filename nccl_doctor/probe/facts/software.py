"""The software that training uses, such as torch and NCCL, and the environment variables that training reads.

The Python interpreter of the training job locates torch, and facts about torch are read from torch's files. Unlike the
training job, the probe runs in isolated mode (``-I``) and ignores PYTHONPATH and user site-packages. A single child
process locates torch and queries libnccl, because starting a process takes longer than the queries. The child process
receives the libnccl query on stdin and exits when stdin is closed. Environment variables are read from an SSH session
and from an interactive login shell.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import pwd
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from typing import Any, Mapping

from nccl_doctor.probe import children
from nccl_doctor.probe.facts import libnccl
from nccl_doctor.probe.tools import Unavailable, fact, output, read

MARGIN_S = 1.0  # time for a decision after the deadline
CHILD_MARK = b"nccl-doctor-torch "
SCRIPT = f"""import os, sys
if os.environ.get("PYTHONPATH"):
    import json, random, socket, typing
m = sys.modules.get("torch")
finders = [getattr(finder, "find_spec", lambda *_: None) for finder in sys.meta_path]
s = m.__spec__ if m else next(filter(None, (find("torch", None) for find in finders)), None)
told = map(str, [s.origin if s and s.origin else "", sys.version, sys.prefix, *sys.path])
told = "\\0".join(told).encode("utf-8", "surrogateescape").hex()
os.write(1, b"\\n" + {CHILD_MARK!r} + told.encode() + b"\\n")
exec(sys.stdin.buffer.readline())
"""
"""A script that locates torch as ``importlib.util.find_spec`` does, but without importing ``importlib.util``.

Importing ``importlib.util`` would take 8 ms.
"""


class Interpreter:
    """A child process that runs the Python interpreter of the training job.

    The process is started in the probe's main thread and can be queried from any thread.
    """

    def __init__(self, env: dict[str, str], deadline: float) -> None:
        self._deadline = deadline
        self._output = b""
        self._library: str | None = None
        self._version = ""
        self._decided = threading.Event()
        self._failure: str | None = None
        self._places: tuple[str | None, list[str], str] | None = None
        self._asking = threading.Lock()
        self._heard = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._reading, writing = os.pipe()
        try:
            command = [sys.executable, "-c", SCRIPT]
            self._child = children.start(command, libnccl.variables(env), writing, stdin=subprocess.PIPE)
        except OSError as error:  # no more processes allowed (RLIMIT_NPROC): only this answer is lost
            self._output = str(error).encode()
        finally:
            os.close(writing)

    def torch(self) -> tuple[str | None, list[str], str]:
        """Return the path of torch's ``__init__.py`` (None if torch is missing), ``sys.path`` and ``sys.prefix``."""
        with self._asking:
            if self._places is None:
                self._places = self._ask()
        return self._places

    def _ask(self) -> tuple[str | None, list[str], str]:
        try:
            while b"\n" not in self._output.partition(CHILD_MARK)[2]:
                if not self._read():
                    words = " ".join(self._output.decode("utf-8", "replace").split())[-200:]
                    if self._child is not None:
                        self._failure = words or "it ended without a word"
                    raise Unavailable(f"{sys.executable} did not say where torch is: {words}")
        finally:
            self._heard.set()
        answer, _, self._output = self._output.partition(CHILD_MARK)[2].partition(b"\n")
        origin, self._version, prefix, *path = binascii.a2b_hex(answer).decode("utf-8", "surrogateescape").split("\0")
        return origin or None, path, prefix

    def failure(self) -> str | None:
        """Return the last output of the interpreter if the interpreter failed to start.

        The result is None if the interpreter started.
        """
        self._heard.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
        return self._failure

    def decide(self, library: str | None) -> None:
        """Set the path of the libnccl to query.

        The path is None if there is no libnccl.

        This method must be called exactly once, even if :meth:`torch` fails.
        """
        self._library = library
        self._decided.set()

    def nccl(self) -> dict[str, Any] | None:
        """Wait for :meth:`decide`, query the chosen libnccl, and end the child process."""
        try:
            self._decided.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
            if self._library is None or self._child is None or self._child.stdin is None:
                return None
            # a process that exited after its first answer reads nothing: its last output explains it
            with contextlib.suppress(BrokenPipeError):
                with self._child.stdin as questions:
                    questions.write(libnccl.program(self._library, self._version))
                while self._read():
                    continue
            return libnccl.understand(self._output)
        except Unavailable as error:
            return libnccl.report(error=f"libnccl did not answer: {error}")
        finally:
            if self._child is not None:
                self._child.kill()
                self._child.communicate()
            os.close(self._reading)

    def _read(self) -> bool:
        """Read more of the child's output. Return False at the end of the output."""
        left = max(0.0, self._deadline - time.monotonic())
        if not select.select([self._reading], [], [], left)[0]:
            raise Unavailable(f"{sys.executable} gave no answer in time")
        chunk = os.read(self._reading, 1 << 16)
        self._output += chunk
        return bool(chunk)


LIBRARY = "libnccl.so.2"
NCCL_WHEEL = re.compile(r"(nvidia_nccl_cu[0-9]+)-([^-]+)\.dist-info", re.ASCII)
CONDA_NCCL = re.compile(r"(nccl)-([0-9.]+)-[^-]+\.json", re.ASCII)
RECORDED = re.compile(rf"^nvidia/nccl/lib/{re.escape(LIBRARY)},[^,]*,([0-9]{{1,15}})\r?$", re.MULTILINE)
LINKED = re.compile(rf"^\s*(?:{re.escape(LIBRARY)} => )?(/\S*libnccl\.so\S*) \(0x", re.MULTILINE)


@fact("libnccl", slow=True)
def ask_libnccl(interpreter: Interpreter) -> dict[str, Any] | None:
    """Query the NCCL library that torch will load, and return a ``snapshot.LibncclAnswer``.

    Return None if no NCCL library was found.
    """
    return interpreter.nccl()


@fact("torch", slow=True)
def read_torch(env: Mapping[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    """Return a ``snapshot.TorchInfo``, or None if torch is not installed.

    The path of the libnccl that torch will load is passed to :meth:`Interpreter.decide`.
    """
    library: str | None = None
    try:
        torch_info = _read_torch({**os.environ, **env}, interpreter, deadline)
        library = torch_info["nccl_library"] if torch_info else None
    finally:
        interpreter.decide(library)
    return torch_info


def _read_torch(environ: dict[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    origin, path, prefix = interpreter.torch()
    if not origin:  # only a directory of that name
        return None
    location = os.path.dirname(origin)
    try:
        with open(os.path.join(location, "version.py"), encoding="utf-8", errors="replace") as file:
            versions = parse_version(file.read())
    except FileNotFoundError:
        raise Unavailable(f"{location} has no version.py") from None
    folders = [folder for folder in (*path, os.path.dirname(location)) if folder]
    # the nvidia-nccl wheel's library, which torch's wheels find first, by their RPATH
    wheel = _first([f"{folder}/nvidia/nccl/lib" for folder in folders])
    copies = find_nccl(folders, prefix, environ)
    library = wheel or _first([f"{location}/lib"]) or _system_library(environ, prefix, deadline)
    unlinked: str | None = None
    if len({os.path.realpath(copy["path"]) for copy in copies}) > 1:
        try:
            # the dynamic linker's own answer, with the job's variables; it runs no code of the library
            match = LINKED.search(output(["ldd", f"{location}/lib/libtorch_cuda.so"], deadline, env=environ))
            library = os.path.normpath(match[1]) if match else library
        except FileNotFoundError:
            unlinked = "there is no ldd"
        except Unavailable as error:
            unlinked = str(error)
    for copy in copies:
        size = copy.pop("size")
        mapped = library is not None and os.path.realpath(library) == os.path.realpath(copy["path"])
        copy["loaded"] = mapped and size in (None, os.path.getsize(copy["path"]))
    return {
        "version": versions["__version__"],
        "cuda": versions["cuda"],
        "hip": versions["hip"],
        "nccl": next((copy["version"] for copy in copies if copy["loaded"]), None),
        "nccl_library": library,
        "nccl_copies": copies if len(copies) > 1 else [],
        "nccl_unlinked": unlinked,
        "location": location,
    }


def parse_version(text: str) -> dict[str, str | None]:
    """Return the values of ``__version__``, ``cuda`` and ``hip`` in torch/version.py.

    torch/version.py contains lines such as ``cuda: Optional[str] = '12.8'``.
    """
    versions: dict[str, str | None] = dict.fromkeys(("__version__", "cuda", "hip"))
    for name, value in re.findall(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE):
        if name in versions:
            versions[name] = value
    if versions["__version__"] is None:
        raise Unavailable("torch/version.py names no version")
    return versions


def find_nccl(folders: list[str], prefix: str, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a ``snapshot.NcclCopy`` for each copy of NCCL.

    Each item also contains the library's size according to the wheel's RECORD file.

    Copies from wheels and conda packages precede copies in LD_PRELOAD and LD_LIBRARY_PATH.

    The nvidia-nccl-cu12 and nvidia-nccl-cu13 wheels install their library at the same path, so only the file size shows
    which of these wheels was installed last.
    """
    places = [(folder, NCCL_WHEEL, f"{folder}/nvidia/nccl/lib") for folder in dict.fromkeys(folders)]
    copies: list[dict[str, Any]] = []
    for folder, pattern, lib in (*places, (f"{prefix}/conda-meta", CONDA_NCCL, f"{prefix}/lib")):
        with contextlib.suppress(OSError):  # sys.path may name missing directories, or zip files
            for match in filter(None, map(pattern.fullmatch, sorted(os.listdir(folder)))):
                size = RECORDED.search(read(f"{folder}/{match[0]}/RECORD") or "")
                details = {"owner": match[1].replace("_", "-"), "version": match[2], "path": f"{lib}/{LIBRARY}"}
                copies.append({**details, "size": int(size[1]) if size else None})
    owned = {os.path.realpath(copy["path"]) for copy in copies}
    preloaded = [path for path in re.split("[ :]", environ.get("LD_PRELOAD", "")) if "/libnccl.so" in path]
    beside = [f"{folder}/{LIBRARY}" for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for name, paths in (("LD_PRELOAD", preloaded), ("LD_LIBRARY_PATH", beside)):
        others = (path for path in paths if os.path.realpath(path) not in owned)
        copies += [{"owner": name, "version": None, "path": path, "size": None} for path in others]
    return [copy for copy in copies if os.path.isfile(copy["path"])]


def _system_library(environ: dict[str, str], prefix: str, deadline: float) -> str | None:
    """Return the path of the first NCCL library in the usual directories, or None.

    LD_LIBRARY_PATH, conda's ``lib`` directory and the cache of ld.so(8) are searched in this order.
    """
    library = _first([*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), f"{prefix}/lib"])
    if library:
        return library
    try:
        cache = output(["ldconfig", "-p"], deadline, accept=range(256))  # musl's has no cache to print
    except FileNotFoundError:
        return None
    match = re.search(rf"^\s*{re.escape(LIBRARY)} .*=> (/.*)$", cache, re.MULTILINE)
    return match.group(1) if match else None


def _first(folders: list[str]) -> str | None:
    paths = (os.path.join(folder, LIBRARY) for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)


PREFIXES = (
    *("NCCL_", "TORCH_", "TORCHELASTIC_", "PET_", "MASTER_", "GLOO_"),
    *("TP_", "CUDA_", "NVIDIA_", "OMP_", "UCX_", "FI_"),
)
NAMES = frozenset(
    {
        *("VLLM_HOST_IP", "VLLM_PORT", "VLLM_LOOPBACK_IP", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"),
        *("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
        *("SGLANG_HOST_IP", "HOST_IP", "SGLANG_LOCAL_IP_NIC", "SGLANG_PORT", "SGLANG_TCP_STORE_PORT"),
        *("MOONCAKE_LOCAL_HOSTNAME", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"),
        *("MC_TCP_BIND_ADDRESS", "RAY_ADDRESS"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    }
)
SIZE_LIMIT = 64 * 1024


@fact("env")
def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that are relevant to training.

    Other environment variables are not reported because they might contain secrets.
    """
    variables = os.environ if environ is None else environ
    ours = {name for name in variables if name in NAMES or name.startswith(PREFIXES) or "NCCL_" in name}
    return {name: variables[name] for name in sorted(ours)}


@fact("config_files")
def read_config_files(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a ``snapshot.ConfigFile`` for each configuration file that NCCL might read, even for missing files.

    ``env`` contains the job's environment variables. If NCCL_CONF_FILE is set, NCCL 2.23.4 and later read the file that
    NCCL_CONF_FILE names. If NCCL_CONF_FILE is not set, NCCL reads .nccl.conf in the home directory that the password
    database lists for the user. In addition, NCCL always reads /etc/nccl.conf. NCCL silently ignores configuration
    files that can't be opened (src/misc/param.cc, ``userHomeDir`` and ``setEnvFile``).
    """
    named = env.get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
    paths = [named] if named else []
    with contextlib.suppress(KeyError):  # a user id without a name has no home directory for NCCL either
        paths.append(os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf"))
    paths.append("/etc/nccl.conf")
    return [{"path": path, "text": file_text(path)} for path in dict.fromkeys(paths)]


def file_text(path: str) -> str | None:
    """Return the first SIZE_LIMIT bytes of a regular file, or None if the file does not exist or is not readable."""
    try:
        # Opening a FIFO of that name must not block.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise Unavailable(f"{path} can't be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise Unavailable(f"{path} is not a regular file")
        return os.read(number, SIZE_LIMIT).decode("utf-8", "surrogateescape")
    finally:
        os.close(number)


SHELLS = ("bash", "zsh", "sh", "dash", "ksh", "mksh", "fish")
"""Shells that accept the options ``-l``, ``-i`` and ``-c`` together. csh is missing because it accepts ``-l`` only as
the sole option.
"""
PATIENCE_S = 4.0
MOST_SHELL_BYTES = 1024 * 1024
WHICH_PYTHON = "import sys; print(sys.executable, sys.prefix, sep=chr(0), end='')"
SHELL_MARK = b"nccl-doctor-login-shell\0"
MARK_TEXT = "nccl-doctor-login-shell\\0"
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")  # variables that an activated environment sets (venv and conda)


def read_login_shell(python: str, deadline: float) -> dict[str, Any] | None:
    """Return a ``snapshot.LoginShell``, or None if the user's shell is not supported.

    ``python`` is the Python interpreter that is specified in the hosts file.
    """
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:  # a container with a uid without a name
        return None
    if os.path.basename(shell) not in SHELLS:
        return None
    import shlex  # 1 ms, and most hosts are not asked

    where = "" if "/" in python else f"{shlex.quote(python)} -I -c {shlex.quote(WHICH_PYTHON)};"
    line = f"printf '{MARK_TEXT}'; {where} printf '\\0\\0'; exec env -0"
    answer = _ask_shell([shell, "-l", "-i", "-c", line], min(deadline, time.monotonic() + PATIENCE_S))
    executable, prefix, there = parse_login_shell(answer)
    here, there_too = read_environment(), read_environment(there)
    names = [name for name in sorted({*here, *there_too}) if here.get(name) != there_too.get(name)]
    return {
        "shell": shell,
        "python": executable,
        "prefix": prefix,
        "differing": {name: (here.get(name), there_too.get(name)) for name in names},
        "environment": next((there[name] for name in ACTIVE if there.get(name) and not os.environ.get(name)), None),
    }


def parse_login_shell(printed: bytes) -> tuple[str | None, str | None, Mapping[str, str]]:
    """Return the interpreter's path, ``sys.prefix`` and the environment variables that are printed after SHELL_MARK."""
    _, mark, answer = printed.rpartition(SHELL_MARK)
    if not mark:
        raise Unavailable("the login shell ends without running a command")
    fields = [field.decode("utf-8", "surrogateescape") for field in answer.split(b"\0")]
    executable, prefix = (fields[0], fields[1]) if len(fields) > 2 and fields[0].startswith("/") else (None, None)
    pairs = [field.partition("=") for field in fields[2:] if "=" in field]
    return executable, prefix, {name: value for name, _, value in pairs}


def _ask_shell(argv: list[str], deadline: float) -> bytes:
    """Run a shell without a terminal and return the output. The shell's history file is not changed."""
    allowed_s = max(0.1, deadline - time.monotonic())
    # Not a pipe: a background agent of a start-up file would keep it open.
    answer = os.memfd_create("nccl-doctor-login-shell")
    try:
        shell = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HISTFILE": "/dev/null"},
            start_new_session=True,
        )
        try:
            shell.wait(allowed_s)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            raise Unavailable("the login shell gave no answer in time") from None
        return os.pread(answer, MOST_SHELL_BYTES, 0)
    finally:
        os.close(answer)
