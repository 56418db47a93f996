from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from nccl_doctor.probe.facts import software
from nccl_doctor.probe.facts.software import Interpreter
from nccl_doctor.probe.tools import Unavailable
from nccl_doctor.snapshot.system import TorchInfo
from tests.patience import LONG_S

VERSION_PY = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.7.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = '134179474539648ba7dee1317959529fbd0e7f89'
hip: Optional[str] = None
"""


def look(env: dict[str, str], seconds: float = LONG_S) -> TorchInfo | None:
    deadline = time.monotonic() + seconds
    asked = Interpreter(env, deadline)
    try:
        found = software.read_torch(env, asked, deadline)
    finally:
        asked.nccl()
    return None if found is None else TorchInfo.model_validate(found)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for PYTHONPATH with a torch that fails if somebody imports it; it hides what is installed here."""
    hide = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    monkeypatch.setattr(software, "SCRIPT", hide + software.SCRIPT)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch/version.py").write_text(VERSION_PY)
    return tmp_path


def library(folder: Path) -> str:
    folder.mkdir(parents=True)
    path = folder / software.LIBRARY
    path.touch()
    return str(path)


def test_a_wheel_of_nccl_is_what_torch_loads(site: Path) -> None:
    wheel = library(site / "nvidia/nccl/lib")
    library(site / "torch/lib")
    (site / "nvidia_nccl_cu12-2.26.2.dist-info").mkdir()
    assert look({"PYTHONPATH": str(site)}) == TorchInfo(
        version="2.7.0+cu128", cuda="12.8", hip=None, nccl="2.26.2", nccl_library=wheel, location=str(site / "torch")
    )


def make_wheel(folder: Path, name: str, version: str, size: int) -> Path:
    """A wheel that brings a libnccl of so many bytes."""
    info = f"{name}-{version}.dist-info"
    files = {
        "nvidia/nccl/lib/libnccl.so.2": "x" * size,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in files.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{place},sha256=x,{len(text)}\n" for place, text in files.items()))
    return path


@pytest.mark.parametrize("last", ["cu12", "cu13"])
def test_of_two_wheels_the_one_installed_last_owns_the_file(site: Path, tmp_path: Path, last: str) -> None:
    sizes = {"cu12": ("2.27.7", 300), "cu13": ("2.28.9", 200)}
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--ignore-installed", "--prefix"]
    for kind in sorted(sizes, key=lambda kind: kind == last):
        wheel = make_wheel(tmp_path, f"nvidia_nccl_{kind}", *sizes[kind])
        subprocess.run([*pip, str(tmp_path / "env"), str(wheel)], check=True)
    (installed,) = (tmp_path / "env").glob("lib*/python3*/site-packages")
    packages = installed.rename(tmp_path / "packages")
    found = look({"PYTHONPATH": f"{site}:{packages}"})
    assert found is not None
    assert found.nccl == sizes[last][0]
    assert {one.owner: one.loaded for one in found.nccl_copies} == {
        f"nvidia-nccl-{kind}": kind == last for kind in sizes
    }


def test_of_several_files_the_dynamic_linker_names_the_one_that_torch_gets(site: Path) -> None:
    real = str(distribution("nvidia-nccl-cu13").locate_file("nvidia/nccl/lib/libnccl.so.2"))
    wheel = library(site / "nvidia/nccl/lib")
    (site / "nvidia_nccl_cu12-2.26.2.dist-info").mkdir()
    (site / "torch/lib").mkdir()
    import _ctypes  # any library of the machine's own kind

    (site / "torch/lib/libtorch_cuda.so").symlink_to(_ctypes.__file__)
    found = look({"PYTHONPATH": str(site), "LD_PRELOAD": real})
    assert found is not None
    assert (found.nccl, found.nccl_library) == (None, real)
    assert [(one.owner, one.path, one.loaded) for one in found.nccl_copies] == [
        ("nvidia-nccl-cu12", wheel, False),
        ("LD_PRELOAD", real, True),
    ]
    beside = look({"PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(Path(real).parent)})
    assert beside is not None, "ld.so names none, and the wheel's stands before"
    assert [one.loaded for one in beside.nccl_copies] == [True, False]


def test_without_an_answer_of_the_linker_it_says_why(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(site / "nvidia/nccl/lib")
    (site / "nvidia_nccl_cu12-2.26.2.dist-info").mkdir()
    library(site / "other")
    beside = {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(site / "other")}
    found = look(beside)
    assert found is not None
    assert (found.nccl_unlinked or "").startswith("ldd ended with 1"), "there is no libtorch_cuda.so"
    for error, why in ((FileNotFoundError("ldd"), "there is no ldd"), (Unavailable("ldd gave no answer in time"),) * 2):

        def refuse(*_: object, error: Exception = error, **__: object) -> str:
            raise error

        monkeypatch.setattr(software, "output", refuse)
        found = look(beside)
        assert found is not None
        assert found.nccl_unlinked == str(why)


def test_without_a_wheel_torchs_own_library_counts_and_a_left_over_record_does_not(site: Path) -> None:
    own = library(site / "torch/lib")
    (site / "nvidia_nccl_cu12-2.26.2.dist-info").mkdir()
    found = look({"PYTHONPATH": str(site)})
    assert found is not None
    assert (found.nccl, found.nccl_library) == (None, own)


def test_else_the_loaders_path_counts(site: Path, tmp_path: Path) -> None:
    elsewhere = library(tmp_path / "opt")
    found = look({"PYTHONPATH": str(site), "LD_LIBRARY_PATH": f":{tmp_path / 'opt'}"})
    assert found is not None
    assert found.nccl_library == elsewhere


def test_else_the_loaders_cache_counts(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = "3 libs found\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib64/libnccl.so.2\n"
    monkeypatch.setattr(software, "output", lambda argv, *_rest, **_more: cache if "-p" in argv else "")
    found = look({"PYTHONPATH": str(site)})
    assert found is not None
    assert found.nccl_library == "/usr/lib64/libnccl.so.2"


def test_no_torch_is_none_and_neither_is_a_mere_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    assert look({}) is None
    (tmp_path / "torch").mkdir()
    assert look({"PYTHONPATH": str(tmp_path)}) is None


def test_what_start_up_code_prints_is_passed_over(site: Path) -> None:
    (site / "sitecustomize.py").write_text("import sys; print('hello', end=''); print('warning', file=sys.stderr)")
    found = look({"PYTHONPATH": str(site)})
    assert found is not None
    assert found.version == "2.7.0+cu128"


def test_an_interpreter_that_fails_is_told_in_its_words(site: Path) -> None:
    (site / "sitecustomize.py").write_text("raise SystemExit('licence expired')")
    with pytest.raises(Unavailable, match=r"did not say where torch is: .*licence expired"):
        look({"PYTHONPATH": str(site)})


def test_an_interpreter_that_hangs_is_ended(site: Path) -> None:
    (site / "sitecustomize.py").write_text("import time; time.sleep(60)")
    with pytest.raises(Unavailable, match="gave no answer in time"):
        look({"PYTHONPATH": str(site)}, seconds=0.3)


def test_a_torch_without_version_is_unknown(site: Path) -> None:
    (site / "torch/version.py").write_text("")
    with pytest.raises(Unavailable, match="names no version"):
        look({"PYTHONPATH": str(site)})
    (site / "torch/version.py").unlink()
    with pytest.raises(Unavailable, match=r"has no version\.py"):
        look({"PYTHONPATH": str(site)})


def test_old_and_rocm_builds_are_read() -> None:
    old = "__version__ = '1.13.1'\ndebug = False\ncuda = None\ngit_version = 'abc'\nhip = '5.2.21151-afdc89f8'\n"
    assert software.parse_version(old) == {"__version__": "1.13.1", "cuda": None, "hip": "5.2.21151-afdc89f8"}
