"""Faults inside a rank, without a word of them in the product: Python's own ``sitecustomize``, on one host's PYTHONPATH."""

from __future__ import annotations

from typing import Any

from tests.lab.host import LabHost

FOLDER = "/opt/injected"

PROGRAM = '''\
"""Acts on the local rank $INJECT_RANK when it reports the stage $INJECT_AT.

"none" is the start of the interpreter that forks the ranks, "began" its word that it is up, before it imports torch.
"""

import importlib.util
import os
import signal
import sys
import time

ACT, AT, RANK = os.environ["INJECT"], os.environ["INJECT_AT"], os.environ["INJECT_RANK"]


def act():
    if ACT == "hang":
        time.sleep(86400)
    elif ACT == "pause":
        while os.path.exists("/run/pause"):
            time.sleep(0.05)
    elif ACT == "raise":
        raise ValueError("injected")
    elif ACT == "leave":
        os._exit(7)
    elif ACT == "unheard":
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    elif ACT == "timed":
        with open("/run/timed", "w") as file:
            file.write("\\n".join(lines))
    elif ACT == "segment":
        with open("/dev/shm/nccl-Ab3dE6", "w"):
            time.sleep(86400)
    else:
        os.kill(os.getpid(), getattr(signal, ACT))


def watch_reports():
    write = os.write

    def patched(file, data):
        written = write(file, data)
        stage = b'"stage": "%s"' % AT.encode() in data and os.environ["LOCAL_RANK"] == RANK
        if file == 1 and (stage or (AT == "began" and b'"began"' in data)):
            act()
        return written

    os.write = patched


class AllReduce:
    """Hands out an all_reduce that does more than it should, where torch.distributed is still to be imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.all_reduce = CHANGES[ACT](module.all_reduce)

        spec.loader.exec_module = exec_module
        return spec


class Broken:
    """Torch's launcher can't be imported, as where one of its needs is missing."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed.run":
            raise ModuleNotFoundError("No module named 'injected'")


def wrong(real):
    def all_reduce(tensor, *arguments, **named):
        tensor[0] += os.environ["LOCAL_RANK"] == RANK
        return real(tensor, *arguments, **named)

    return all_reduce


lines = []


def timed(real):
    """Our own stop-watch around the same calls: type, number and seconds of each."""

    def all_reduce(tensor, *arguments, **named):
        began = time.perf_counter()
        result = real(tensor, *arguments, **named)
        if os.environ["LOCAL_RANK"] == RANK:
            lines.append(f"{tensor.dtype} {tensor.numel()} {time.perf_counter() - began!r}")
        return result

    return all_reduce


CHANGES = {"wrong": wrong, "timed": timed}

if "NCDOCTOR_ALLREDUCE" in os.environ:
    if ACT in CHANGES:
        if (there := sys.modules.get("torch.distributed")) is None:
            sys.meta_path.insert(0, AllReduce())
        else:
            there.all_reduce = CHANGES[ACT](there.all_reduce)
    if ACT == "broken":
        sys.modules.pop("torch.distributed.run", None)
        sys.meta_path.insert(0, Broken())
    if AT != "none":
        watch_reports()
    elif ACT not in (*CHANGES, "broken"):
        act()
'''


def inject(host: LabHost, act: str, at: str = "none", local_rank: int = 0) -> dict[str, Any]:
    """Prepares a host; the variables that its entry in the hosts file needs."""
    host.write(f"{FOLDER}/sitecustomize.py", PROGRAM)
    return {
        "PYTHONPATH": FOLDER,
        "PYTHONDONTWRITEBYTECODE": "1",
        "INJECT": act,
        "INJECT_AT": at,
        "INJECT_RANK": str(local_rank),
    }
