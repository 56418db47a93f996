from __future__ import annotations

import pytest

from nccl_doctor.probe import jobs


@pytest.mark.parametrize(
    ("line", "program", "launcher"),
    [
        ("/usr/bin/python3 /opt/train/bin/torchrun --nproc_per_node 2 train.py", "torchrun", True),
        ("python -m torch.distributed.run train.py", "torch.distributed.run", True),
        ("python3.11 -u -X dev -m torch.distributed.launch train.py", "torch.distributed.launch", True),
        ("python -um torch.distributed.run train.py", "torch.distributed.run", True),
        ("/usr/bin/mpirun -np 2 python train.py", "mpirun", True),
        ("python -u train.py --launcher torchrun", "train.py", False),
        ("python /home/u/accelerate/train.py", "train.py", False),
        ("python -W ignore -c pass torchrun", "-c", False),
        ("vim torchrun", "vim", False),
        ("nginx: master process /usr/sbin/nginx", "nginx", False),
        ("python3", "python3", False),
        ("", "", False),
    ],
)
def test_what_runs_is_told_by_the_command_line(line: str, program: str, launcher: bool) -> None:
    assert jobs.program(line.split()) == program
    assert jobs.is_launcher(line.split()) is launcher


@pytest.mark.parametrize("name", ["python", "python3", "python3.11", "pypy3", "python3.13t"])
def test_interpreters_are_known(name: str) -> None:
    assert jobs.is_python(name)
    assert not jobs.is_python(f"my{name}")


def test_services_in_python_are_no_training() -> None:
    assert jobs.service(["python", "-m", "http.server", "29500"]) == "a web server"
    assert jobs.service(["python", "/usr/bin/uvicorn", "app:app"]) == "a web server"
    assert jobs.service(["python", "-m", "ipykernel_launcher", "-f", "kernel.json"]) == "a notebook's kernel"
    assert jobs.service(["python", "train.py"]) is None
