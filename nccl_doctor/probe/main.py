"""The probe's main loop, which reads requests from stdin and writes answers to stdout.

Requests and answers are JSON objects, one per line.

Each answer is preceded by a random nonce (``NONCE {json}``), so that output of ``.bashrc`` or an MOTD can't be mistaken
for an answer. A reader thread reads stdin. The probe kills its child processes and exits when stdin is closed, which
means that the controller has exited or the connection is broken. The probe also exits if no data arrives from the
controller for a while, for example because a cable was unplugged or a laptop is asleep. Normally, the controller sends
an empty line every second. As a last resort, a timer kills a probe that outlives its controller (SIGALRM with the
default action).
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import select
import signal
import sys
import threading
from typing import Any, Callable, Dict

from nccl_doctor.probe import children, tools

Handler = Callable[[Dict[str, Any]], Any]

CHUNK = 1 << 16
REQUESTS = {
    "facts": "facts:collect",
    "clock": "tools:clock",
    "firewall": "facts/firewall:read_again",
    "resolve": "facts/network:look_up_names",
    "listen": "mesh/mesh:MeshRequests.listen",
    "dial": "mesh/mesh:MeshRequests.dial",
    "unlisten": "mesh/mesh:MeshRequests.unlisten",
    "path_mtu": "mesh/mesh:try_path_mtu",
    "ways": "netlink:look_up_ways",
    "rate": "mesh/rate:send",
    "links": "mesh/rate:read_links",
    "turn": "turn:Turns.take",
    "end_turn": "turn:Turns.end",
    "import_torch": "smoke/service:AllReduce.import_torch",
    "smoke": "smoke/service:AllReduce.run",
    "free_port": "ports/requests:free_port",
    "prepare_trials": "smoke/service:AllReduce.prepare_trials",
    "trial": "smoke/service:AllReduce.try_group",
    "end_launcher": "smoke/service:AllReduce.end",
    "port": "ports/requests:look",
    "signal": "ports/requests:send",
    "free": "ports/requests:free",
    "named": "facts/firewall:named",
    "ranks": "hang/watch:Watch.find",
    "starters": "hang/watch:Watch.find_starters",
    "py_spy": "hang/watch:Watch.take_spy",
    "look": "hang/watch:Watch.look",
    "dump": "hang/watch:Watch.dump",
    "ras": "hang/watch:Watch.ask_ras",
}
"""The handler of each request type, in the form ``module:function`` or ``module:Class.method``.

A handler class is instantiated once per connection. The module of a handler is imported when the first request for the
handler arrives. The types of the handlers' answers are defined in crew/answers.py.
"""


class Server:
    """A server that handles the requests of one controller.

    Args:
        nonce: random text that precedes every answer on this connection.
        lifetime_s: maximum lifetime of the probe in seconds.
        silence_s: number of seconds without data from the controller after which the probe exits.
        source: function that returns the source code of one of the probe's modules.
    """

    def __init__(self, nonce: str, lifetime_s: float, silence_s: float, source: Callable[[str], str]) -> None:
        self._nonce, self._silence_s = nonce.encode(), silence_s
        self._leaving = False
        self.source = source
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stop = threading.Event()  # set when the controller ends the all-reduce
        self._writing = threading.Lock()
        # Output of a child or a library must not break the framing: stdout moves, and fd 1 becomes stderr.
        self._out = os.dup(1)
        os.dup2(2, 1)
        children.become_subreaper()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave())
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the loader's own handler is gone
        signal.setitimer(signal.ITIMER_REAL, lifetime_s)
        self._services: dict[str, Any] = {}  # by module and class

    def serve(self) -> None:
        """Answer requests one after another until the process exits."""
        threading.Thread(target=self._read, name="stdin", daemon=True).start()
        self.send({"hello": _hello()})
        while True:
            request = self._requests.get()
            answer: dict[str, Any] = {"id": request["id"]}
            try:
                answer["ok"] = self._handler(request["do"])(request)
            except Exception as error:  # noqa: BLE001 - goes to the controller whole, traceback included
                answer["error"] = f"{type(error).__name__}: {error}"
                answer["traceback"] = tools.trace()
            self.send(answer)

    def _read(self) -> None:
        try:
            self._read_requests()
        finally:  # also after a request that can't be read, since nothing would notice the end of stdin any more
            self._leave()

    def _read_requests(self) -> None:
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
            self.stop.set()
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

    def send(self, message: dict[str, Any]) -> None:
        data = self._framed(message)
        with self._writing:
            if self._leaving:  # otherwise it would report what we end ourselves as a failure
                return
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                self._leave()

    def _handler(self, name: str) -> Handler:
        if "." not in REQUESTS[name]:
            return handler(name)
        service, _, method = REQUESTS[name].rpartition(".")
        if service not in self._services:
            self._services[service] = _named(service)(self)
        return getattr(self._services[service], method)  # type: ignore[no-any-return]  # imported late, for speed


def handler(name: str) -> Handler:
    """Return the function that handles a type of request. The handler must not be a method of a class."""
    return _named(REQUESTS[name])  # type: ignore[no-any-return]  # imported late, for speed


def _named(path: str) -> Any:  # noqa: ANN401 - a function or a class
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"nccl_doctor.probe.{module.replace('/', '.')}"), name)


def _hello() -> dict[str, Any]:
    """Return the information that the controller needs before its first request."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "machine": os.uname().machine,
        "pid": os.getpid(),
        "load": {"queue": os.getloadavg()[0], "cpus": len(os.sched_getaffinity(0))},
    }
