"""Pythons: what `python:` of the hosts file may lead to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import READY, Make, Row
from tests.lab.odd.users import runs
from tests.lab.plan import INTERPRETERS

OPTIONS = ("--skip", "torch-missing", "--skip", "version-mismatch")
"""What the odd ones do not have is another matter."""

LEAST = (3, 8)
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SILENT_FUSE = """
import ctypes, os, signal
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % os.open("/dev/fuse", os.O_RDWR)
assert ctypes.CDLL(None).mount(b"silent", b"/mnt/hung", b"fuse", 0, options) == 0
signal.pause()
"""


def at(path: str) -> Mapping[str, Any]:
    """The host's own interpreter."""
    return {"python": path}


def script(path: str, text: str, mode: int = 0o755) -> Make:
    """A host with a program of this text."""

    def make(_lab: Lab, host: LabHost) -> None:
        host.write(path, text, mode)

    return make


def based(place: str, *commands: str) -> Make:
    """This interpreter's base at another place, where these commands are run."""

    def make(_lab: Lab, host: LabHost) -> None:
        host.run(f"mkdir -p {place} /run/upper /run/work")
        layers = f"lowerdir={sys.base_prefix},upperdir=/run/upper,workdir=/run/work"
        host.run(["mount", "-t", "overlay", "overlay", "-o", layers, place])
        host.run(" && ".join((f"cd {place}", *commands)))

    return make


def without(*patterns: str) -> Make:
    """/opt/python is this interpreter's base as if it had been built without some libraries' headers."""
    return based("/opt/python", *(f"rm lib/{NAME}/{pattern}" for pattern in patterns))


def hung(_lab: Lab, host: LabHost) -> None:
    """/mnt/hung hangs whoever looks into it, as NFS does whose server is gone: a FUSE that never says a word."""
    host.run("mkdir -p /mnt/hung")
    host.background([sys.executable, "-c", SILENT_FUSE])
    host.wait_until(lambda: "/mnt/hung fuse" in host.run("cat /proc/mounts").stdout, "a mount that hangs")


def exporting(text: str, *commands: str) -> Make:
    """root's .bashrc."""

    def make(lab: Lab, host: LabHost) -> None:
        runs(*commands)(lab, host)
        host.write("/root/.bashrc", text + "\n")

    return make


def conda(lab: Lab, host: LabHost) -> None:
    """A base environment, and what ``conda init`` wrote."""
    based("/opt/conda", "mkdir conda-meta && touch conda-meta/history")(lab, host)
    host.write("/opt/conda/bin/conda", CONDA_HOOK, 0o755)
    host.write("/root/.bashrc", CONDA)
    host.write("/root/.profile", ". ~/.bashrc\n")  # as distributions have it


def _of_this_machine() -> tuple[Row, ...]:
    """Every other Python that this machine has: too old, or as good as any."""
    rows = []
    for path in sorted(INTERPRETERS.glob("*/bin/python")):
        version = tuple(int(part) for part in path.parts[-3].split(".") if part.isdigit())
        says = READY
        if version < LEAST:
            number = "Python 2" if version[0] == 2 else f"Python {path.parts[-3]}"
            says = ("python-missing", f"{path} is {number}, and 3.8 or later is needed", "full path under python:")
        rows.append(Row(f"Python {path.parts[-3]}", says, entry=at(str(path))))
    return tuple(rows)


SYSTEM = "/usr/bin/python3"
JUNK = "mkdir -p /opt/junk && cd /opt/junk && for name in json socket nccl_doctor typing; do echo 'raise SystemExit(9)' >$name.py; done"
UV = f"/root/.local/share/uv/python/cpython-{sys.version_info[0]}.{sys.version_info[1]}-linux-gnu"
"""Where uv puts the interpreters that it fetches; its venvs are links to them."""
CONDA = """
__conda_setup="$('/opt/conda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
if [ $? -eq 0 ]; then eval "$__conda_setup"; else export PATH="/opt/conda/bin:$PATH"; fi
unset __conda_setup
"""
"""What ``conda init`` writes into .bashrc."""
CONDA_HOOK = r"""#!/bin/sh
echo 'export CONDA_EXE=/opt/conda/bin/conda CONDA_PREFIX=/opt/conda CONDA_SHLVL=1 PATH="/opt/conda/bin:$PATH" PS1="(base) $PS1"'
"""
MISSING = 'interpreter "{}" does not exist'

ROWS = (
    *_of_this_machine(),
    Row("no such interpreter", ("python-missing", MISSING.format("/opt/none/bin/python"), "under python:"), entry=at("/opt/none/bin/python")),
    Row("a name that PATH does not have", ("python-missing", MISSING.format("python3.99")), entry=at("python3.99")),
    Row("a folder", ("python-missing", "is a directory, not an interpreter"), entry=at("/usr/lib")),
    Row("a file that nobody may run", ("python-missing", "permission denied"), script("/opt/py", "#!/bin/sh\n", 0o644), entry=at("/opt/py")),
    Row(
        "an interpreter that this user may not reach",
        ("python-missing", "permission denied", "folders above it"),
        runs("mkdir -m 700 /opt/shut && ln -s /usr/bin/python3 /opt/shut/python"),
        entry={"python": "/opt/shut/python", "ssh": {"user": "alice"}},
    ),
    Row("one for another processor", ("python-missing", "made for another kind of processor"),
        runs("printf '\\177ELF\\002\\001\\001%0100d' 0 >/opt/arm && chmod 755 /opt/arm"), entry=at("/opt/arm")),
    Row("a mount with noexec", ("python-missing", "permission denied", "noexec"),
        runs("mkdir /opt/data && mount -t tmpfs -o noexec none /opt/data && cp -L /usr/bin/python3 /opt/data/python"),
        entry=at("/opt/data/python")),
    Row("a venv whose base is gone", ("python-missing", MISSING.format("/opt/venv/bin/python")),
        runs("mkdir -p /opt/venv/bin && ln -s /opt/gone/bin/python3 /opt/venv/bin/python"), entry=at("/opt/venv/bin/python")),
    Row("a copy outside of its prefix", READY,
        runs("mkdir -p /opt/half/bin && cp -L " + str(Path(sys.base_prefix, "bin/python3")) + " /opt/half/bin/python",
             "printf 'home = /opt/gone/bin\\n' >/opt/half/pyvenv.cfg"), entry=at("/opt/half/bin/python")),
    Row("a build without zlib", ("python-missing", "built without zlib", "zlib1g-dev"), without("lib-dynload/zlib*.so"), entry=at("/opt/python/bin/python3")),
    Row("a library half gone", ("python-missing", "does not start: failed to get the Python codec", "damaged"), without("encodings/__init__.py"), entry=at("/opt/python/bin/python3")),
    Row("a build without ssl", READY, without("lib-dynload/_ssl*.so"), entry=at("/opt/python/bin/python3")),
    Row("a build without ctypes", ("python-missing", "built without _ctypes", "libffi-dev"), without("lib-dynload/_ctypes*.so"), entry=at("/opt/python/bin/python3")),
    Row("a build without sqlite, lzma, bz2, readline", READY,
        without("lib-dynload/_sqlite3*.so", "lib-dynload/_lzma*.so", "lib-dynload/_bz2*.so", "lib-dynload/readline*.so"),
        entry=at("/opt/python/bin/python3")),
    Row("the distribution's own", READY, entry=at(SYSTEM)),
    Row(
        "a venv as uv makes them, of an interpreter in the home",
        READY,
        based(UV, f"touch lib/{NAME}/EXTERNALLY-MANAGED", "mkdir -p /opt/train/.venv/bin", f"ln -s {UV}/bin/{NAME} /opt/train/.venv/bin/python",
              f"printf 'home = {UV}/bin\\nimplementation = CPython\\nuv = 0.8.4\\ninclude-system-site-packages = false\\n' >/opt/train/.venv/pyvenv.cfg"),
        entry=at("/opt/train/.venv/bin/python"),
    ),
    Row("an environment of conda's that .bashrc alone puts first", READY, conda, entry=at("python3")),
    Row("a path with blanks and quotes", READY,
        runs("mkdir -p \"/opt/it's my env/bin\" && ln -s " + sys.executable + " \"/opt/it's my env/bin/python 3\""),
        entry=at("/opt/it's my env/bin/python 3")),
    Row("a tilde", READY, runs(f"ln -s {sys.executable} /root/python"), entry=at("~/python")),
    Row("a shim that looks for the real one", READY, script("/opt/shim", f'#!/usr/bin/env bash\nset -e\nexec "{sys.executable}" "$@"\n'), entry=at("/opt/shim")),
    Row("PYTHONPATH full of modules of Python's own names", ("python-missing", "fails to start in the environment of a training job", "PYTHONPATH"),
        exporting("export PYTHONPATH=/opt/junk PYTHONSTARTUP=/opt/junk/json.py", JUNK), unknown=("cuda-driver-mismatch", "did not say where torch is")),
    Row("PYTHONPATH full of what does not exist", READY, exporting("export PYTHONPATH=/opt/junk:/nowhere:/etc/passwd::'a b'")),
    Row("a sitecustomize that prints", READY,
        exporting("export PYTHONPATH=/opt/site", "mkdir /opt/site && echo 'print(\"site!\")' >/opt/site/sitecustomize.py")),
    Row("PYTHONHOME of another", ("python-missing", "fails to start in the environment of a training job", "No module named 'encodings'", "PYTHONHOME"),
        exporting("export PYTHONHOME=/opt/nothing"), unknown=("cuda-driver-mismatch", "encodings")),
    Row("junk in the home", READY, exporting("cd /opt/junk", JUNK)),
    Row("PYTHONDEVMODE, PYTHONVERBOSE and warnings as errors", READY, exporting("export PYTHONDEVMODE=1 PYTHONWARNINGS=error PYTHONVERBOSE=1")),
)  # fmt: skip

HANGS = (
    Row("an interpreter on a mount that hangs", ("probe-failed", "did not start in time"), hung, entry=at("/mnt/hung/bin/python")),
    Row("an interpreter that never starts", ("probe-failed", "did not start in time"),
        runs("mkfifo /opt/hung && chmod 755 /opt/hung", "printf '#!/bin/sh\\nread line </opt/hung\\n' >/opt/py && chmod 755 /opt/py"),
        entry=at("/opt/py")),
)  # fmt: skip
