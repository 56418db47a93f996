"""A real training of a small model, started by the lines that ``nccl-doctor launch`` prints."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.program import run_in
from tests.lab.cluster import Lab
from tests.patience import LONG_S

SCRIPT = """\
import argparse, os
import torch
import torch.distributed as dist
from torch import nn

def train(method, rank, world):
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(16, 8)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    common = torch.linspace(-1, 1, 64).reshape(8, 8)
    loss = nn.functional.mse_loss(model.module(common), common.sum(1, keepdim=True)).item()
    line = f"\\nloss {rank} {world} {loss!r} {os.environ.get('CUDA_VISIBLE_DEVICES', '-')}\\n"
    os.write(1, line.encode())  # at once, so that ranks don't mix
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # torch's threads abort the interpreter's own end now and then ("terminate called without ...")

def spawned(local, options, count):
    train(options.dist_url, options.rank * count + local, options.world_size * count)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", "--local-rank", type=int)
    parser.add_argument("--dist-url")
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--note")
    options = parser.parse_args()
    assert options.note == "two words; $HOME", options.note
    if options.dist_url:
        import torch.multiprocessing as mp
        mp.spawn(spawned, (options, COUNT), nprocs=COUNT)
    else:
        train("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
"""
NOTE = ("--note", "two words; $HOME")
"""An argument that only a rightly quoted line brings to the script whole."""


def launch(lab: Lab, hosts: str, *options: str) -> dict[str, Any]:
    """The document of ``nccl-doctor launch`` for these hosts and the script above."""
    document: dict[str, Any] = json.loads(printed(lab, hosts, *options, form="json"))
    return document


def printed(lab: Lab, hosts: str, *options: str, form: str) -> str:
    """What ``nccl-doctor launch`` prints in one of its forms."""
    lab.controller.write("/root/hosts.yaml", hosts)
    done = run_in(lab.controller, "launch", "hosts.yaml", *options, "--format", form, "--", "train.py", *NOTE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_lines(lab: Lab, document: dict[str, Any], machines: dict[str, str], spawn: int = 1) -> dict[int, list[str]]:
    """Runs every line on its machine at once; what each rank said behind "loss": world size, loss, visible GPUs.

    Args:
        lab: where.
        document: of :func:`launch`.
        machines: the lab's host that a node is, where it has another name.
        spawn: processes that a script makes by itself, which is told tcp://.
    """
    for host in lab.hosts:
        host.write("/root/train.py", SCRIPT.replace("COUNT", str(spawn)))
    pipe = subprocess.PIPE
    started = [
        lab.host(machines.get(one["host"], one["host"])).popen(
            one["command"], stdout=pipe, stderr=subprocess.STDOUT, env={"OMP_NUM_THREADS": "1"}
        )
        for one in document["commands"]
    ]
    return _said(started, document["world_size"])


def run_here(lab: Lab, script: str, world_size: int) -> dict[int, list[str]]:
    """As :func:`run_lines`, for what ``--format ssh`` prints, which is pasted on the controller."""
    for host in lab.hosts:
        host.write("/root/train.py", SCRIPT)
    return _said([lab.controller.popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)], world_size)


def _said(started: list[subprocess.Popen[str]], world_size: int) -> dict[int, list[str]]:
    said: dict[int, list[str]] = {}
    outputs = [process.communicate(timeout=LONG_S)[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output
        for line in output.splitlines():
            if line.startswith("loss "):
                rank, *rest = line.split()[1:]
                said[int(rank)] = rest
    assert len(said) == world_size, outputs
    return said
