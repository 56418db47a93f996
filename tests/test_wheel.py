"""What the index would get: wheel and sdist are built, checked, and the wheel is installed and run by itself."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

import nccl_doctor
from nccl_doctor.cli.main import COMMANDS
from scripts.man import page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NAME = f"nccl_doctor-{nccl_doctor.__version__}"
LENT = {"torch", "numpy", "py_spy", "mcp", "mcp_types"}
"""What hosts have or have not (torch, numpy), a name for a program's folder, and an extra."""


PORTS_ONLY = ["--no-smoke", "--only", "ports"]
SMOKE = {
    "check": ([*PORTS_ONLY, "--save", "seen.json"], "checks passed"),
    "fix": ([*PORTS_ONLY, "--dry-run"], ""),
    "fix-port": (["1029"], "port 1029 on this machine"),
    "smoke": (["--timeout", "60", "--smoke-timeout", "20"], "all-reduce"),
    "logs": (["hosts.yaml"], "1 file"),
    "ifname": ([], "NCCL uses"),
    "hosts": (["hosts.yaml"], "2 hosts, master a"),
    "launch": (["hosts.yaml", "--", "train.py"], "--node_rank=1"),
    "hang": (["--interval", "1", "--no-stacks"], "Verdict"),
    "diff": (["seen.json", "seen.json"], ""),
    "explain": (["NCD301"], "firewall-blocks-port"),
    "codes": ([], "NCD304"),
    "schema": (["hang"], "urn:nccl-doctor:schema:hang:1"),
    "mcp": ([], ""),
}
"""A call of each command that needs no other host, and a part of what it prints."""
OWN_PROCESSES = ["unshare", "-pf" if os.getuid() == 0 else "-rpf", "--kill-child", "--mount-proc"]
"""`hang` looks at each process of this machine: the jobs of tests beside this one are none of its own."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    assert {file.name for file in folder.iterdir()} == {f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"}
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, folder.iterdir()))
    return folder / f"{NAME}-py3-none-any.whl"


def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Nothing is downloaded: what the wheel requires is lent by this environment, where no copy of ours is found."""
    venv.create(tmp_path / "venv")
    tool, python = str(tmp_path / "venv/bin/nccl-doctor"), str(tmp_path / "venv/bin/python")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = {**os.environ, "PYTHONPATH": packages}
    where = "import nccl_doctor; print(nccl_doctor.__file__)"
    assert _run(python, "-c", where, env=env, cwd=tmp_path).startswith(str(tmp_path)), "the installed one runs"
    assert _run(tool, "--version", env=env) == f"nccl-doctor {nccl_doctor.__version__}\n"
    assert _run(tool, "explain", "slurm", env=env).startswith("slurm  ")
    assert "NCD304" in _run(tool, "codes", env=env)
    (tmp_path / "hosts.yaml").write_text("hosts: [a, b]\nnproc_per_node: 1\n")
    assert "--node_rank=1" in _run(tool, "launch", "hosts.yaml", "--", "train.py", env=env, cwd=tmp_path)
    for command, (words, expected) in SMOKE.items():
        shown = subprocess.run(
            [*OWN_PROCESSES, tool, command, *words],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert expected in shown.stdout, (command, shown.stdout, shown.stderr)
        assert "Traceback" not in shown.stderr
        assert f"nccl-doctor {command} " in _run(tool, command, "--help", env=env)
    assert set(SMOKE) == set(COMMANDS)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    manual = f"{NAME}.data/data/share/man/man1/nccl-doctor.1"
    assert held == {manual, *_run("git", "ls-files", "nccl_doctor", cwd=ROOT).split()}
    assert ZipFile(wheel).read(manual).decode() == page(), "python scripts/man.py writes it anew"


def test_what_is_imported_is_required(wheel: Path) -> None:
    """By itself, or by what is required: paramiko brings cryptography."""
    required = _names(re.findall(r"^Requires-Dist: (.+)$", _metadata(wheel), re.MULTILINE))
    for _ in range(3):
        required |= {more for name in required for more in _names(_requires(name))}
    owners = packages_distributions()
    imported = set()
    for module in (ROOT / "nccl_doctor").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            imported |= {name.partition(".")[0] for name in names}
    # from Python 3.14 on compression is a module of the standard library
    foreign = imported - LENT - {"nccl_doctor", "compression"} - sys.stdlib_module_names
    assert {name for name in foreign if not required.intersection(map(_plain, owners.get(name, [])))} == set()


def test_pictures_and_pages_are_linked_as_the_index_needs_it(wheel: Path) -> None:
    description = _metadata(wheel)
    assert "](https://" in description
    assert re.findall(r"\]\((?!https:)[^)]+\)", description) == []


def _run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _metadata(wheel: Path) -> str:
    return ZipFile(wheel).read(f"{NAME}.dist-info/METADATA").decode()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> set[str]:
    return {_plain(re.split(r"[^\w.-]", line)[0]) for line in requirements if "extra ==" not in line}


def _requires(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:  # it is for another system or Python
        return []
