"""Which programs the probe runs, and from where."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from nccl_doctor import probe
from nccl_doctor.probe import tools
from nccl_doctor.probe.tools import Unavailable
from tests.patience import LONG_S

PROBE = Path(probe.__file__).parent
BUILT_IN = {"dict", "frozenset", "list", "set", "tuple", "type"}
STARTING = {"Popen", "run", "call", "check_call", "check_output", "system", "popen", "fork", "forkpty"}
STARTERS = {
    "tools.py": "a program of the list, for its output",
    "facts/firewall.py": "a program of the list, as root",
    "children.py": "what its callers start, and a folder's keeper by /bin/sh",
    "facts/software.py": "the login's own shell, by passwd(5)",
    "enter.py": "the shell of the container that the hosts file names, with its rights alone",
    "privileges.py": "forks, and runs nothing",
    "hang/watch.py": "py-spy, of the list or sent along, out of memory",
    "smoke/worker.py": "forks ranks of the all-reduce, and runs nothing",
}
CALLERS = {"facts/software.py": "the interpreter that runs the probe", "smoke/allreduce.py": "the same, for torchrun"}
"""Who calls children.start."""


def calls(tree: ast.AST) -> set[str]:
    """What a module calls as ``subprocess.NAME`` or ``os.NAME``, that starts a process, and ``children.start``."""
    found = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            owner, name = node.func.value.id, node.func.attr
            starts = name in STARTING or name.startswith(("exec", "spawn", "posix_spawn"))
            if (owner in ("subprocess", "os") and starts) or (owner, name) == ("children", "start"):
                found.add(f"{owner}.{name}")
    return found


def test_programs_are_started_in_these_places_alone() -> None:
    found: dict[str, set[str]] = {}
    for path in PROBE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(PROBE))
        imported = [
            one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module in ("subprocess", "os")
        ]
        assert not imported, f"{name} must call them by their module's name, or this test does not see it"
        for call in calls(tree):
            found.setdefault("children.start" if call == "children.start" else "process", set()).add(name)
    assert found["process"] == set(STARTERS)
    assert found["children.start"] == set(CALLERS)


def program(folder: Path, name: str = "lspci", mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\necho $0\n")
    path.chmod(mode)
    return path


def ran(path: str) -> str:
    os.environ["PATH"] = path
    return tools.output(["lspci"], time.monotonic() + LONG_S).strip()


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "SYSTEM", ())
    monkeypatch.setattr(tools, "MORE", ())
    monkeypatch.setenv("PATH", "")


def test_a_program_on_the_logins_path(tmp_path: Path) -> None:
    path = program(tmp_path / "bin")
    assert ran(f"{tmp_path}/nothing:{tmp_path}/bin") == str(path)


def test_and_one_that_it_links_to(tmp_path: Path) -> None:
    real = program(tmp_path / "lib/real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/lspci").symlink_to("../lib/real/lspci")
    (tmp_path / "way").symlink_to(tmp_path / "bin")
    assert ran(f"{tmp_path}/way") == f"{tmp_path}/way/lspci"
    assert real.exists()


@pytest.mark.parametrize("entry", ["", ".", "bin", "./bin"])
def test_an_entry_that_is_no_whole_path_is_passed_over(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin")
    program(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        ran(entry)


def test_what_is_not_on_the_list_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "other")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="not a program of the list"):
        tools.output(["other"], time.monotonic() + LONG_S)


@pytest.mark.parametrize("weak", ["bin/lspci", "bin", "", "away/lspci", "away"])
@pytest.mark.parametrize("how", ["owner", "group", "others"])
def test_root_runs_nothing_that_somebody_else_can_change(weak: str, how: str, tmp_path: Path) -> None:
    """At no step: the file, its folder, one above, or one that a link leads through."""
    own = tmp_path / "own"
    real = program(own / ("away" if weak.startswith("away") else "bin"))
    if weak.startswith("away"):
        (own / "bin").mkdir()
        (own / "bin/lspci").symlink_to(real)
    assert ran(f"{own}/bin") == f"{own}/bin/lspci"
    place = own / weak
    if how == "owner":
        os.chown(place, 12345, -1)
    else:
        place.chmod(place.stat().st_mode | (0o020 if how == "group" else 0o002))
    with pytest.raises(Unavailable, match=f"is not run as root: others can change {place}$"):
        ran(f"{own}/bin")
    assert tools.find("lspci", [f"{own}/bin"], for_root=True) is None


def test_below_a_folder_like_tmp_root_s_own_is_safe_and_in_it_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    program(tmp_path / "tmp/bin")
    program(tmp_path / "tmp")
    assert ran(f"{tmp_path}/tmp/bin") == f"{tmp_path}/tmp/bin/lspci"
    with pytest.raises(Unavailable, match="is not run as root"):
        ran(f"{tmp_path}/tmp")


def test_links_without_end_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert tools.weak_place(f"{tmp_path}/a") is not None
    assert tools.weak_place(f"{tmp_path}/nothing") is not None


def test_any_other_user_has_their_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "bin", mode=0o775)
    (tmp_path / "bin").chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert ran(f"{tmp_path}/bin") == str(path)
    assert tools.find("lspci", [f"{tmp_path}/bin"], for_root=True) is None


def test_in_a_user_namespace_whoever_has_no_number_there_is_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path / "bin")
    os.chown(path, 65534, 65534)
    told = {"/proc/self/uid_map": "0 1000 1\n1 100000 65536", "/proc/sys/kernel/overflowuid": "65534"}
    monkeypatch.setattr(tools, "read", told.get)
    assert tools.weak_place(str(path)) == str(path)


def test_no_type_is_subscripted_where_python_3_8_evaluates_it() -> None:
    """vermin does not see it; with __future__.annotations, only annotations are left alone."""
    bad = []
    for path in PROBE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        hints = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
        left_alone = {id(inner) for hint in hints if hint is not None for inner in ast.walk(hint)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in BUILT_IN:
                bad += [f"{path.name}:{node.lineno}"] if id(node) not in left_alone else []
    assert bad == []
