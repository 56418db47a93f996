"""The handler of the ``facts`` request.

Each fact is determined by a separate collector.

A collector is a function in this package that the decorator :func:`~nccl_doctor.probe.tools.fact` registers for a field
of ``snapshot.HostFacts``. Collectors don't wait for each other. An exception, an unresponsive name server, a dead NFS
mount or a hanging nvidia-smi affects only a single fact.

The following CPU times are per host and were measured on eight hosts that were also running other programs. The probe
uses 51 ms of CPU time before its first answer, another 15 ms to import the collectors, and another 21 ms to run the
collectors. The port mesh test uses 13 ms of CPU time, and the child process that queries libnccl uses 24 ms. sshd uses
15 ms of CPU time, and the firewall programs use 4 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import resource
import threading
import time
from collections import deque
from functools import partial
from typing import Any, Callable, Dict, Iterable

from nccl_doctor.probe.tools import COLLECTORS, SLOW, Unavailable, trace

STALL_S = 0.05  # a collector that takes this long does not delay the next one, which gets its own thread
MARGIN_S = 0.3  # collectors that can end by themselves get a deadline that is this much earlier


def collect(request: dict[str, Any]) -> dict[str, object]:
    """Return the fields of ``snapshot.HostFacts`` in JSON form, except the clock.

    An unknown fact has the form ``{"$unknown": reason, "traceback": …}``.

    In the request, ``launcher`` is the name of the launcher in the launch command, and ``same`` lists the paths whose
    contents must be identical on all hosts. ``inside`` is true if the probe runs in a container, and ``sudo`` is true
    if the probe may try ``sudo -n``.
    """
    from nccl_doctor.probe.facts.software import Interpreter

    deadline_s = request["deadline_s"]
    began = time.monotonic()
    deadline = began + max(deadline_s - MARGIN_S, deadline_s / 2)
    interpreter = Interpreter(request.get("env") or {}, deadline)  # starts while the collectors are imported
    import_collectors()
    facts = run(_tasks(request, interpreter, deadline), deadline_s)
    facts["login_shell"] = None
    if facts["torch"] is None or facts["gpus"] or facts["rdma"]:
        # A login shell takes 100 ms. Its answer matters if torch is not found, or if NCCL will run.
        from nccl_doctor.probe.facts.software import read_login_shell

        ask = partial(read_login_shell, request.get("python") or "python3", deadline)
        facts.update(run({"login_shell": ask}, max(began + deadline_s - time.monotonic(), MARGIN_S)))
    return facts


def import_collectors() -> None:
    shipped: Iterable[str] | None = getattr(__loader__, "modules", None)  # type: ignore[name-defined]  # bootstrap.py
    if shipped is None:
        shipped = [f"{__name__}.{entry[:-3]}" for entry in os.listdir(os.path.dirname(__file__)) if entry[-3:] == ".py"]
    for name in shipped:
        if name.startswith(f"{__name__}.") and not name.endswith(".__init__"):
            importlib.import_module(name)


def _tasks(request: dict[str, Any], interpreter: object, deadline: float) -> dict[str, Callable[[], object]]:
    """Return the collectors with their arguments. Collectors that start a program come first."""
    from nccl_doctor.probe.facts.network import unpacked

    port, trial = request.get("trial_port"), None
    if port is not None:
        from nccl_doctor.probe.ports.requests import bind_error

        trial = (port, bind_error(port))  # before any collector runs, so that none of their sockets counts as a holder
    arguments = {
        "deadline": deadline,  # on the clock of time.monotonic, for collectors that wait themselves
        "env": request.get("env") or {},
        "inside": bool(request.get("inside")),
        "interpreter": interpreter,
        "launcher": request.get("launcher") or "",
        "names": unpacked(request["names"]),
        "ports": {port for port in (port, request.get("master_port")) if port is not None},
        "same": request.get("same") or [],
        "sudo": bool(request.get("sudo")),
        "trial": trial,
    }
    tasks: Dict[str, Callable[[], object]] = {}
    for field in sorted(COLLECTORS, key=lambda field: field not in SLOW):
        code = COLLECTORS[field].__code__
        names = code.co_varnames[: code.co_argcount]
        tasks[field] = partial(COLLECTORS[field], **{name: arguments[name] for name in names if name in arguments})
    return tasks


def run(tasks: dict[str, Callable[[], object]], deadline_s: float) -> dict[str, object]:
    """Run collectors in parallel. Facts that are missing after ``deadline_s`` seconds are reported as unknown.

    Fast collectors share a thread, because starting a thread takes 0.3 ms. If a collector blocks the shared thread, the
    remaining collectors get a new thread.
    """
    deadline = time.monotonic() + deadline_s
    answers: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    todo = deque(tasks.items())

    def work() -> None:
        while todo:
            with contextlib.suppress(IndexError):  # another thread took the last one
                field, collector = todo.popleft()
                answers.put((field, _answer(collector)))

    facts: Dict[str, object] = {field: _unknown(f"no answer in {deadline_s:g} s") for field in tasks}
    waiting, threads, wanted = set(tasks), 0, 1 + len(tasks.keys() - (COLLECTORS.keys() - SLOW))
    while waiting:
        try:
            while todo and threads < wanted:
                threading.Thread(target=work, name="facts", daemon=True).start()
                threads += 1
        except RuntimeError as error:
            if not threads:
                return dict.fromkeys(tasks, _unknown(_too_few(error)))
            wanted = threads  # existing threads do the rest
        left = max(0.0, deadline - time.monotonic())
        try:
            field, facts[field] = answers.get(timeout=min(left, STALL_S) if todo else left)
            waiting.remove(field)
        except queue.Empty:
            if time.monotonic() >= deadline:
                break
            wanted += 1
    return facts


def _answer(collector: Callable[[], object]) -> object:
    try:
        return _printable(collector())
    except Unavailable as error:
        return _unknown(str(error))
    except PermissionError as error:
        return _unknown(f"{error.strerror}: {error.filename}" if error.filename else str(error))
    except Exception as error:  # noqa: BLE001 - a collector's crash is this fact's answer
        return _unknown(f"{type(error).__name__}: {error}", trace())


def _too_few(error: RuntimeError) -> str:
    """Return an error message with the resource limits that might have prevented a thread from starting.

    Each thread counts as a task and needs 8 MiB of address space.
    """
    space, count = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC))
    bounds = [f"ulimit -v is {space // 1024} KiB"] if space != resource.RLIM_INFINITY else []
    bounds += [f"ulimit -u is {count}"] if count != resource.RLIM_INFINITY else []
    return f"{error} ({', '.join(bounds)})" if bounds else str(error)


def _unknown(reason: str, trace: str | None = None) -> dict[str, object]:
    return {"$unknown": _printable(reason), "traceback": _printable(trace)}


def _printable(value: object) -> object:
    """Return a copy of a value in which lone surrogates, which UTF-8 can't encode, are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(part) for part in value]
    return value
