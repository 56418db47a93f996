"""What one host tells of itself: the answer to the request ``facts``.

Each field of snapshot.HostFacts has a collector, which runs in a thread of its own: an exception, a hanging name
server, a dead NFS mount or an nvidia-smi that never returns costs its own fact and no other.
"""

from __future__ import annotations

import queue
import resource
import threading
import time
import traceback
from functools import partial
from typing import Any, Callable, Dict

from nccl_doctor.probe import firewall, gpus
from nccl_doctor.probe.facts import environment, gpu_health, host, names, pci, processes, same, torch_info
from nccl_doctor.probe.facts.host import read_step, read_surroundings, read_sysctls
from nccl_doctor.probe.facts.network import list_sockets, read_interfaces, read_rdma, read_routes
from nccl_doctor.probe.facts.pci import find_plugins
from nccl_doctor.probe.facts.torch_info import Interpreter
from nccl_doctor.probe.ports.trial import bind_error, explain
from nccl_doctor.probe.reading import Unavailable, port_range

Collector = Callable[[], object]
MARGIN_S = 0.3
"""Collectors that can end in time by themselves are told to end this much before the deadline."""
NO_TRIAL = {"$skipped": "only the master's port is tried"}


def collect(request: dict[str, Any]) -> dict[str, object]:
    """All facts but the clock, by field of snapshot.HostFacts, in JSON form.

    Args:
        request: ``names`` to resolve, see :func:`names.unpacked`; ``deadline_s`` for everything; optional:
            ``trial_port`` to bind, or None; ``master_port``, whose sockets are listed; ``env``, the job's own
            variables; ``python``, the interpreter as the hosts file names it; ``same``, paths to take digests of;
            ``inside``, whether this is a container; ``sudo``, whether ``sudo -n`` may be tried to read firewall rules.

    Returns:
        For each field its value, or ``{"$unknown": reason, "traceback": text or None}``.
    """
    deadline_s = request["deadline_s"]
    began = time.monotonic()
    deadline = began + max(deadline_s - MARGIN_S, deadline_s / 2)
    interpreter = Interpreter(request.get("env") or {}, deadline)
    facts = run(collectors(request, interpreter, deadline), deadline_s)
    facts["login_shell"] = None
    if facts["torch"] is None or facts["gpus"] or facts["rdma"]:
        # A login shell takes 100 ms. What it has besides matters where torch is not found, or where NCCL will run.
        ask = partial(environment.read_login_shell, request.get("python") or "python3", deadline)
        facts.update(run({"login_shell": ask}, max(began + deadline_s - time.monotonic(), MARGIN_S)))
    return facts


def collectors(request: dict[str, Any], interpreter: Interpreter, deadline: float) -> dict[str, Collector]:
    """The collector of each field; those that start a program stand first, for they take longest.

    Args:
        request: as for :func:`collect`.
        interpreter: the one that training would run.
        deadline: on the clock of ``time.monotonic``, for what a collector waits for itself.
    """
    env = request.get("env") or {}
    trial_port = request.get("trial_port")
    watched = {port for port in (trial_port, request.get("master_port")) if port is not None}
    # Tried before any collector runs, so that none takes the trial's own socket for a holder.
    trial = (lambda: NO_TRIAL) if trial_port is None else partial(explain, trial_port, bind_error(trial_port))
    return {
        "torch": partial(torch_info.collect, env, interpreter, deadline),
        "libnccl": interpreter.nccl,
        "gpus": partial(gpus.list_gpus, deadline),
        "firewall": partial(firewall.collect, deadline, bool(request.get("sudo"))),
        "gpu_processes": partial(processes.on_gpus, deadline),
        "gpu_health": partial(gpu_health.collect, deadline),
        "same": partial(same.collect, request.get("same") or [], deadline),
        "pci": partial(pci.read_pci, deadline),
        "resolution": partial(names.collect, names.unpacked(request["names"]), deadline),
        "identity": host.identity,
        "interfaces": partial(read_interfaces, deadline),
        "routes": read_routes,
        "sockets": partial(list_sockets, watched),
        "python": partial(host.python, interpreter.failure),
        "limits": host.limits,
        "shm": host.shm,
        "port_range": port_range,
        "rdma": read_rdma,
        "xids": gpu_health.xids,
        "plugins": partial(find_plugins, env),
        "processes": processes.collect,
        "sysctls": read_sysctls,
        "surroundings": partial(read_surroundings, bool(request.get("inside"))),
        "step": read_step,
        "env": environment.read_environment,
        "config_files": partial(environment.read_config_files, env),
        "master_port": trial,
    }


def run(tasks: dict[str, Collector], deadline_s: float) -> dict[str, object]:
    """Runs collectors side by side; what is not there after ``deadline_s`` seconds is unknown."""
    deadline = time.monotonic() + deadline_s
    answers: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()

    def work(field: str, collector: Collector) -> None:
        answers.put((field, _guarded(collector)))

    facts: Dict[str, object] = {field: _unknown(f"no answer in {deadline_s:g} s") for field in tasks}
    for field, collector in tasks.items():
        try:
            threading.Thread(target=work, args=(field, collector), name=field, daemon=True).start()
        except RuntimeError as error:
            answers.put((field, _unknown(f"{error}{_bounds()}")))
    waiting = set(tasks)
    while waiting:
        try:
            field, value = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        facts[field] = value
        waiting.remove(field)
    return facts


def _bounds() -> str:
    """What bounds the threads here, as ulimit(1) has it: each is a task, and takes 8 MiB of address space."""
    space, tasks = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_NPROC))
    words = [f"ulimit -v is {space // 1024} KiB"] if space != resource.RLIM_INFINITY else []
    words += [f"ulimit -u is {tasks}"] if tasks != resource.RLIM_INFINITY else []
    return f" ({', '.join(words)})" if words else ""


def _guarded(collector: Collector) -> object:
    try:
        return _printable(collector())
    except Unavailable as error:
        return _unknown(str(error))
    except PermissionError as error:
        return _unknown(f"{error.strerror}: {error.filename}" if error.filename else str(error))
    except Exception as error:  # noqa: BLE001 - a collector's crash is this fact's answer
        return _unknown(f"{type(error).__name__}: {error}", traceback.format_exc())


def _unknown(reason: str, trace: str | None = None) -> dict[str, object]:
    return {"$unknown": _printable(reason), "traceback": _printable(trace)}


def _printable(value: object) -> object:
    """The value with bytes that are no UTF-8 spelled out: Python keeps them as lone surrogates, which JSON can't."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(one) for one in value]
    return value
