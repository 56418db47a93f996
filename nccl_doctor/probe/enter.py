"""A program that runs a command in the namespaces and the root directory of another process.

    python3 enter.py PID PROGRAM [ARGUMENT ...]

This file is a standalone program for the host's Python 3.6 or later. nsenter(1) is not used, because nsenter would run
an untrusted program, such as a container's shell, as root with all capabilities of the host. As with ``docker exec``,
the program gets the capability bounding set of the other process (CapBnd, capabilities(7)). If the other process has
the ``no_new_privs`` attribute, the program also gets this attribute.
"""

import ctypes
import os
import signal
import sys

NAMESPACES = (
    ("uts", 0x04000000),
    ("ipc", 0x08000000),
    ("net", 0x40000000),
    ("cgroup", 0x02000000),
    ("time", 0x00000080),
    ("pid", 0x20000000),
    ("mnt", 0x00020000),
)
USER = ("user", 0x10000000)
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 24, 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def main(pid: str, program: "list[str]") -> int:
    """Run a program in the namespaces of a process and return the program's exit status.

    If a signal killed the program, this process kills itself with the same signal.
    """
    try:
        enter("/proc/{}/".format(pid))
    except OSError as error:
        return _refuse("/proc/{}/: {}".format(pid, error.strerror))
    child = os.fork()  # the first process in its PID namespace
    if not child:
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            os.execv(program[0], program)  # noqa: S606 - the words are ours
        except OSError as error:
            os._exit(_refuse("{}: {}".format(program[0], error.strerror)))
    os.closerange(0, 3)  # whoever reads there notices the end of the program itself
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def enter(place: str) -> None:
    """Switch to the namespaces, root directory and capability bounding set of a process."""
    with open(place + "status") as file:
        status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    root = os.open(place + "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    order = (*NAMESPACES, USER) if os.geteuid() == 0 else (USER, *NAMESPACES)
    entered = [(name, kind, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for name, kind, path in _others(place, order)]
    for _, kind, namespace in entered:
        _call("setns", namespace, kind)
    os.fchdir(root)
    os.chroot(".")
    os.chdir("/")
    if any(name == "user" for name, _, _ in entered):
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    _limit(int(status["CapBnd"], 16), last)
    if status.get("NoNewPrivs", "0").strip() == "1":
        _prctl(PR_SET_NO_NEW_PRIVS, 1)


def _others(place: str, order: "tuple[tuple[str, int], ...]") -> "list[tuple[str, int, str]]":
    """Return those namespaces of another process that this process does not share.

    Namespace types that the kernel does not support are left out.
    """
    known = [(name, kind, "{}ns/{}".format(place, name)) for name, kind in order]
    return [namespace for namespace in known if os.path.exists("/proc/self/ns/" + namespace[0])
            and os.readlink(namespace[2]) != os.readlink("/proc/self/ns/" + namespace[0])]  # fmt: skip


def _limit(allowed: int, last: int) -> None:
    """Remove the capabilities 0 to ``last`` that are not in ``allowed`` from all capability sets of this process."""
    for number in range(last + 1):
        if not allowed >> number & 1:
            _prctl(PR_CAPBSET_DROP, number)
    header, both = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capget", header, both)
    for half in (0, 1):
        kept = both[3 * half + 1] & (allowed >> 32 * half & 0xFFFFFFFF)
        both[3 * half : 3 * half + 3] = [kept, kept, 0]
    _call("capset", header, both)
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raise OSError if the function fails."""
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _refuse(words: str) -> int:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()
    return 1


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
