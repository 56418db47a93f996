"""The probe's main loop: requests come on stdin, answers go to stdout, each a line of JSON.

An answer has the form ``NONCE {json}``, so that the output of a ``.bashrc`` or MOTD can't be taken for one. A reader
thread watches stdin. At its end (the controller closed the channel or was killed, or the network reported it), or when
nothing has come for a while (an unplugged cable or a sleeping laptop; otherwise the controller sends an empty line
every second), everything that the probe started is ended and the process exits at once. SIGALRM with its default action
is the last resort against a probe that outlives its controller.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict

from nccl_doctor.probe import children, tools

if TYPE_CHECKING:
    from nccl_doctor.probe.smoke.allreduce import Launcher

Handler = Callable[[Dict[str, Any]], Any]

CHUNK = 1 << 16
WORKER = "nccl_doctor.probe.smoke.worker"
"""The worker's module, whose source is passed to the interpreter that imports torch."""


class Server:
    """Server for one controller, until that disconnects.

    Args:
        nonce: the mark before every answer, random for each connection.
        lifetime_s: seconds after which the probe ends in any case.
        silence_s: seconds without a byte from the controller after which it ends.
        source: returns the source of a shipped module; the all-reduce passes one to training's interpreter.
    """

    def __init__(self, nonce: str, lifetime_s: float, silence_s: float, source: Callable[[str], str]) -> None:
        self._nonce, self._silence_s = nonce.encode(), silence_s
        self._leaving = False
        self._source = source
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        # Output of a child or a library must not break the framing: stdout moves, and fd 1 becomes stderr.
        self._out = os.dup(1)
        os.dup2(2, 1)
        children.become_subreaper()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave())
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the loader's own handler is gone
        signal.setitimer(signal.ITIMER_REAL, lifetime_s)
        self._handlers: dict[str, Handler] = {
            "facts": self._facts,
            "clock": lambda _request: time.time(),
            "firewall": self._firewall,
            "resolve": self._resolve,
            "listen": self._listen,
            "dial": self._dial,
            "unlisten": self._unlisten,
            "ways": self._ways,
            "smoke": self._smoke,
            "path_mtu": self._path_mtu,
            "rate": self._rate,
            "links": self._links,
            "port": self._fix_port,
            "signal": self._fix_port,
            "free": self._fix_port,
            "named": self._named_ports,
            "prepare_trials": self._prepare_trials,
            "free_port": self._free_port,
            "trial": self._trial,
            "end_launcher": lambda _request: self._end_launcher() and None,
            "import_torch": self._import_torch,
            "watch": self._watched,
            "turn": self._take_turn,
            "end_turn": self._end_turn,
        }
        self._watch: Any = None
        self._mesh: Any = None
        self._turn: Any = None
        self._launcher: Launcher | None = None

    def serve(self) -> None:
        """Answer requests one after the other; never returns."""
        threading.Thread(target=self._read, name="stdin", daemon=True).start()
        self._send({"hello": _hello()})
        while True:
            request = self._requests.get()
            answer: dict[str, Any] = {"id": request["id"]}
            try:
                answer["ok"] = self._handlers[request["do"]](request)
            except Exception as error:  # noqa: BLE001 - goes to the controller whole, traceback included
                answer["error"] = f"{type(error).__name__}: {error}"
                answer["traceback"] = tools.trace()
            self._send(answer)

    def _read(self) -> None:
        pending: list[bytes] = []  # a program that is sent along arrives in hundreds of pieces
        # After a suspension the host itself reads what arrived meanwhile: select(2) looks once more when its time is
        # over.
        while select.select([0], [], [], self._silence_s)[0]:
            chunk = os.read(0, CHUNK)
            if not chunk:
                self._leave()
            end, *others = chunk.split(b"\n")
            pending.append(end)
            for begin in others:
                if line := b"".join(pending):
                    self._take(json.loads(line.decode()))
                pending = [begin]
        self._leave({"silent": self._silence_s})

    def _take(self, request: dict[str, Any]) -> None:
        if request["do"] == "end":
            self._leave()
        elif request["do"] == "stop":
            self._stop.set()
        else:
            self._requests.put(request)

    def _leave(self, last_word: dict[str, Any] | None = None) -> None:
        self._leaving = True
        try:
            children.leave()
            # the peer may be gone: write only if that does not block
            if last_word and self._writing.acquire(blocking=False) and select.select([], [self._out], [], 0)[1]:
                os.write(self._out, self._framed(last_word))
        finally:
            os._exit(0)

    def _framed(self, message: dict[str, Any]) -> bytes:
        # a lone surrogate, from bytes that are not UTF-8, would be invalid JSON
        return b"\n" + self._nonce + b" " + json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _send(self, message: dict[str, Any]) -> None:
        data = self._framed(message)
        with self._writing:
            if self._leaving:  # otherwise it would report what we end ourselves as a failure
                return
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                self._leave()

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.facts import collect

        return collect(request)

    def _resolve(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.facts.network import resolve

        return resolve(request["names"], time.monotonic() + request["deadline_s"])

    def _fix_port(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.ports.requests import HANDLERS

        return HANDLERS[request["do"]](request)  # type: ignore[no-any-return]  # imported late, for speed

    def _named_ports(self, _request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.facts.firewall import read_firewall
        from nccl_doctor.probe.ports.requests import RULES_PATIENCE_S, named
        from nccl_doctor.probe.tools import Unavailable

        try:
            return named(read_firewall(time.monotonic() + RULES_PATIENCE_S, sudo=False))
        except Unavailable:  # only root may read it
            return {"ports": []}

    def _firewall(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe import facts
        from nccl_doctor.probe.facts import firewall

        seconds = request["deadline_s"]
        deadline = time.monotonic() + seconds
        return facts.run({"firewall": lambda: firewall.read_firewall(deadline, request["sudo"], again=True)}, seconds)

    def _watched(self, request: dict[str, Any]) -> object:
        from nccl_doctor.probe.hang.watch import Watch

        self._watch = self._watch or Watch()
        return self._watch.handlers[request["what"]](request)

    def _take_turn(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return {"holder": the run that has the turn}, None if it is ours; with "port", also a new trial of it."""
        from nccl_doctor.probe.turn import Turn

        self._turn = self._turn or Turn()
        holder, port = self._turn.take(request["ticket"]), request["port"]
        if holder is not None or port is None:
            return {"holder": holder, "trial": None}
        from nccl_doctor.probe.ports.requests import try_port

        return {"holder": None, "trial": try_port(port)}

    def _end_turn(self, _request: dict[str, Any]) -> None:
        if self._turn is not None:
            self._turn.leave()

    def _listen(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.mesh.mesh import MeshEnd

        self._mesh = MeshEnd(request["nonce"])
        return self._mesh.listen(request["sockets"])  # type: ignore[no-any-return]  # imported late, for speed

    def _dial(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.mesh.mesh import dial

        return (self._mesh.dial if self._mesh else dial)(request["targets"], request["timeout_s"])

    def _unlisten(self, _request: dict[str, Any]) -> dict[str, Any] | None:
        """Close the listeners and return answers.Heard; None if there are none."""
        mesh, self._mesh = self._mesh, None
        return None if mesh is None else mesh.close()

    def _path_mtu(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        from nccl_doctor.probe.mesh.mesh import try_all

        targets = [(address, port) for address, port in request["targets"]]
        return try_all(targets, request["deadline_s"], request["segment"])

    def _rate(self, request: dict[str, Any]) -> dict[str, Any]:
        from nccl_doctor.probe.mesh.rate import send

        return send(request)

    def _links(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        from nccl_doctor.probe.mesh.rate import links

        return links(request["interfaces"])

    def _ways(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        from nccl_doctor.probe.netlink import look_up

        return look_up(request["packets"])

    def _import_torch(self, request: dict[str, Any]) -> None:
        from nccl_doctor.probe.smoke.allreduce import early

        if self._launcher is None:
            self._launcher = early(request["env"], self._source(WORKER))

    def _smoke(self, request: dict[str, Any]) -> dict[str, Any]:
        launcher = self._launch(request["env"])
        self._stop.clear()
        ident, counters = request["id"], _counters() if request["order"]["backend"] == "nccl" else None
        try:
            end = launcher.run(request["order"], lambda event: self._send({"id": ident, "event": event}), self._stop)
        finally:
            lines = self._end_launcher()
        return {**end, "output": lines, "counters": counters and _counters(counters)}

    def _launch(self, env: dict[str, str]) -> Launcher:
        """Return the process that forks ranks: the one that has already imported torch, if it has these variables."""
        from nccl_doctor.probe.smoke.allreduce import Launcher

        if self._launcher is not None and self._launcher.env != env:
            self._end_launcher()
        self._launcher = self._launcher or Launcher(env, self._source(WORKER))
        return self._launcher

    def _end_launcher(self) -> list[str]:
        launcher, self._launcher = self._launcher, None
        return [] if launcher is None else launcher.close()

    def _prepare_trials(self, request: dict[str, Any]) -> None:
        try:
            self._launch(request["env"]).wait_until_ready(request["deadline_s"])
        except TimeoutError:
            self._end_launcher()
            raise

    def _trial(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the all-reduce in a group of hosts; the launcher is kept for the next."""
        self._stop.clear()
        assert self._launcher is not None
        return {"ok": self._launcher.run(request["order"], lambda _event: None, self._stop)["exit"] == 0}

    def _free_port(self, _request: dict[str, Any]) -> int:
        from nccl_doctor.probe.ports.requests import free_port

        return free_port()


COUNT_S = 2.0  # time for a device that no longer answers to report its counters


def _counters(before: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return RDMA's counters, or how much they grew; None if there are none or they were not read in time."""
    from nccl_doctor.probe import facts
    from nccl_doctor.probe.facts.rdma import count_rdma, grown

    now: Any = facts.run({"counters": count_rdma}, COUNT_S)["counters"]
    return None if not now or "$unknown" in now else now if before is None else grown(before, now)


def _hello() -> dict[str, Any]:
    """Send the controller what it must know before its first request."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "machine": os.uname().machine,
        "pid": os.getpid(),
        "load": {"queue": os.getloadavg()[0], "cpus": len(os.sched_getaffinity(0))},
    }
