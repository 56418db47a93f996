"""psutil on a host: its own where it serves, else the controller's, loaded from memory without a file on disk.

The Python modules are compiled from the shipped sources. The extension has to be a file for dlopen(3): it gets one
that exists in memory only, by memfd_create(2), under /proc/self/fd.
"""

from __future__ import annotations

import binascii
import os
import sys
import zlib
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Sequence

from nccl_doctor.probe.unavailable import Unavailable

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc costs 10 ms, and nothing asks whether a loader is one of its classes

OLDEST = (5, 9, 3)
"""The psutil whose net_if_stats first tells an interface's flags."""
EXTENSION = "psutil._psutil_linux"
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360}
"""The system call's number, by machine (the kernel's syscall tables)."""
MFD_CLOEXEC = 1

_problem: str | None = None


def require() -> None:
    """Sees to it that ``import psutil`` works and gives one that serves; callers import it behind this.

    Raises:
        Unavailable: there is none, or it is too old, and none could be loaded from memory.
    """
    version = _version()
    if version is None or version < OLDEST:
        raise Unavailable(_problem or _lack(version))


def install(bundle: dict[str, Any]) -> None:
    """Makes ``import psutil`` work, from a bundle of collect/psutil_bundle.py; does nothing where the host's serves.

    Raises:
        Unavailable: the bundle was built for another machine or libc, or the host's kernel or policy refuses it.
    """
    global _problem  # noqa: PLW0603 - said again by every fact that needs psutil
    own = _version()
    if own is not None and own >= OLDEST:
        return
    try:
        _refuse_mismatch(bundle)
        load({name: zlib.decompress(binascii.a2b_base64(data)) for name, data in bundle["files"].items()})
    except Unavailable as error:
        _problem = f"{_lack(own)}, and {error}"
        raise Unavailable(_problem) from error


def load(files: dict[str, bytes]) -> None:
    """Imports psutil from its files' contents, by file name; replaces one that was imported before.

    Raises:
        Unavailable: the extension can't be loaded from memory here.
    """
    _forget()
    importer = _MemoryPsutil(files)
    sys.meta_path.insert(0, importer)
    try:
        import psutil  # noqa: F401 - to see that it loads
    except (ImportError, OSError) as error:
        sys.meta_path.remove(importer)
        _forget()
        raise Unavailable(f"the one sent along can't be loaded from memory: {error}") from error


class _MemoryPsutil(Loader):
    """Finds psutil and its modules among the shipped files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - importlib.abc wants it
        target: ModuleType | None = None,  # noqa: ARG002 - as path
    ) -> ModuleSpec | None:
        if fullname == EXTENSION:
            return self._extension_spec()
        if self._file(fullname) not in self._files:
            return None
        return ModuleSpec(fullname, self, is_package=fullname == "psutil")

    def create_module(self, spec: ModuleSpec) -> None:
        """Nothing: an ordinary module will do."""

    def exec_module(self, module: ModuleType) -> None:
        name = self._file(module.__name__)
        exec(compile(self._files[name], "<psutil>/" + name, "exec"), module.__dict__)  # noqa: S102 - sent by our side

    def _extension_spec(self) -> ModuleSpec:
        name = next(name for name in self._files if name.endswith(".so"))
        # Kept open: dlopen(3) takes a path it has seen before for the same library, so the number must stay ours.
        file = memory_file(self._files[name])
        path = f"/proc/self/fd/{file}"
        return ModuleSpec(EXTENSION, ExtensionFileLoader(EXTENSION, path), origin=path)

    @staticmethod
    def _file(fullname: str) -> str:
        package, _, name = fullname.partition(".")
        return (name or "__init__") + ".py" if package == "psutil" else ""


def memory_file(data: bytes) -> int:
    """A file descriptor of a file that exists in memory only, with this content; see memfd_create(2).

    Raises:
        OSError: the kernel refuses.
    """
    # Pythons built against a glibc before 2.27, such as conda's, don't have the call.
    file = os.memfd_create("psutil") if hasattr(os, "memfd_create") else _memfd_by_number()
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return file


def _memfd_by_number() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(MEMFD_CREATE[os.uname().machine], b"psutil", MFD_CLOEXEC)
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return file


def _refuse_mismatch(bundle: dict[str, Any]) -> None:
    if "missing" in bundle:
        raise Unavailable(bundle["missing"])
    machine = os.uname().machine
    if bundle["machine"] != machine:
        raise Unavailable(f"the one sent along is for {bundle['machine']}, the host is {machine}")
    if bundle["libc"] != libc():
        raise Unavailable(f"the one sent along is for {bundle['libc']}, the host has {libc()}")


def libc() -> str:
    """Which C library this interpreter is built for: "glibc" or "musl"."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "musl").split()[0]
    except (ValueError, OSError):  # the name is glibc's own
        return "musl"


def _version() -> tuple[int, ...] | None:
    """Of the psutil that imports here; None where none does."""
    try:
        import psutil
    except ImportError:
        return None
    return tuple(psutil.version_info)


def _lack(version: tuple[int, ...] | None) -> str:
    """What is wrong with the host's own psutil."""
    if version is None:
        return "psutil is not installed on the host"
    return f"the host's psutil {'.'.join(map(str, version))} is older than {'.'.join(map(str, OLDEST))}"


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "psutil"]:
        del sys.modules[name]
