"""The first code that runs on a host.

This module makes the probe's other modules importable from memory and starts the probe's server (probe/main.py).

crew/start.py sends this file as plain source code, followed by a call to :func:`start`. This file must be valid in
Python 3.5 and later, so that it can reject a Python version that is too old. The modules that this file loads need
Python 3.8 or later. Each module is sent as source code and as bytecode from the controller's Python. If the host has
the same Python version, the bytecode saves 50 ms of compilation time. Each module is compressed separately, so that a
host decompresses only what it needs. Most hosts need no source code and less than half of the bytecode.
"""

import gc
import importlib.machinery
import json
import marshal
import os
import resource
import sys
import types
import zlib
from importlib._bootstrap_external import MAGIC_NUMBER

ROOT = "nccl_doctor"
LEAST_MEMORY = 256 << 20
"""Lowest limit on the address space (``ulimit -v``), in bytes, with which the probe runs.

The probe's threads need 150 MB, and importing torch needs more than 300 MB.
"""


class MemoryImporter:
    """An importer that loads the probe's modules from memory.

    No file is written on the host, and tracebacks show the source code.

    The class implements the import protocol without the base classes in ``importlib.abc``, because importing
    ``importlib.abc`` takes 11 ms.
    """

    def __init__(self, modules: "dict[str, tuple[bytes, bytes]]", native: bool) -> None:
        """Initialise the importer with the compressed source code and bytecode of each module.

        ``native`` is true if the bytecode is for this Python version.
        """
        self.modules = modules
        self._native = native

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """Return the spec of a module of the probe, or None for any other module (see ``importlib.abc``)."""
        package = fullname + ".__init__" in self.modules
        if not package and fullname not in self.modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package)  # type: ignore[arg-type]  # no base

    def create_module(self, _spec: object) -> None:
        """Return None, so that Python creates a default module object."""

    def get_source(self, fullname: str) -> str:
        """Return the source code of a module, which ``linecache`` reads for tracebacks."""
        return zlib.decompress(self._packed(fullname)[0]).decode()

    def get_code(self, fullname: str) -> types.CodeType:
        if self._native:
            return marshal.loads(zlib.decompress(self._packed(fullname)[1]))  # type: ignore[no-any-return]  # noqa: S302
        return compile(self.get_source(fullname), file_name(fullname), "exec")

    def _packed(self, fullname: str) -> "tuple[bytes, bytes]":
        return self.modules.get(fullname) or self.modules[fullname + ".__init__"]

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - our own bundle, received over SSH


def file_name(module: str) -> str:
    return "<probe>/" + module.replace(".", "/") + ".py"


def why_not() -> str:
    """Return why this Python interpreter can't run the probe.

    The result is an empty string if the interpreter can run the probe.
    """
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= memory < LEAST_MEMORY:  # RLIM_INFINITY is -1
        return "ulimit -v is " + str(memory >> 10) + " KiB"
    if sys.version_info < (3, 8):
        return "Python 3.8 or later is needed, this is " + ".".join(str(part) for part in sys.version_info[:3])
    return ""


def start(packed: bytes) -> None:
    """Read the header line and run the server until the connection ends.

    The header is a JSON object with the nonce and the time limits of the probe (see ``Server`` in probe/main.py). If
    this Python interpreter can't run the probe, only the reason is sent.
    """
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows the line belongs to the server
        line += os.read(0, 1) or sys.exit()
    header = json.loads(line.decode())
    refusal = why_not()
    if refusal:
        sys.stdout.write("\n" + header["nonce"] + " " + json.dumps({"refused": refusal}) + "\n")
        sys.stdout.flush()
        return
    # The probe lives for minutes and keeps little: garbage can stay, and imported modules make none.
    gc.set_threshold(20000, 20, 100)
    modules = marshal.loads(packed[len(MAGIC_NUMBER) :])  # noqa: S302 - as it was sent
    importer = MemoryImporter(modules, packed.startswith(MAGIC_NUMBER))
    sys.meta_path.insert(0, importer)
    from nccl_doctor.probe.main import Server

    Server(header["nonce"], header["lifetime_s"], header["silence_s"], importer.get_source).serve()
