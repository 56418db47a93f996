"""The all-reduce again and again over changing groups of hosts, to find who breaks it; see collect/bisect.py.

One process imports torch once, and forks this host's ranks for each group (allreduce_worker.py): a group that works
takes a fraction of a second then, where torchrun would import torch twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from nccl_doctor.probe import children
from nccl_doctor.probe.allreduce import Output, program, start


class Trials:
    """The process that forks ranks, from its start to its end."""

    def __init__(self, request: dict[str, Any], worker: str) -> None:
        """Starts it and waits until torch is imported.

        Args:
            request: ``{"mark", "env", "config", "deadline_s"}``, as for allreduce.run.
            worker: its source.

        Raises:
            TimeoutError: torch was not imported in time, or the process ended before.
        """
        self._events: list[dict[str, Any]] = []
        self._output = Output(request["mark"], self._events.append)
        self._held = contextlib.ExitStack()
        orders, self._orders = os.pipe()
        self._source, write_end = os.pipe()
        for file in (orders, self._orders, self._source):
            self._held.callback(os.close, file)
        config = dict(request["config"], orders=f"/proc/{os.getpid()}/fd/{orders}", deadline_s=request["deadline_s"])
        self._process = start([self._held.enter_context(program(worker))], request, config, write_end)
        os.close(write_end)
        if not self._until("ready", request["deadline_s"]):
            last = self._output.lines[-1:] or ["nothing"]
            self.close()
            raise TimeoutError(f"torch was not imported in {request['deadline_s']:.0f} s; it said: {last[0]}")

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One group: ``{"ranks": [environment of each], "deadline_s"}``.

        Returns:
            ``{"ok": bool, "stages": {local rank: the last one}, "errors": {local rank: text}}``.
        """
        self._events.clear()
        os.write(self._orders, json.dumps(order).encode() + b"\n")
        ended = self._until("ended", order["deadline_s"] + 2.0)
        stages = {e["local_rank"]: e["stage"] for e in self._events if "stage" in e}
        errors = {e["local_rank"]: e["error"] for e in self._events if "error" in e}
        return {"ok": bool(ended and ended["ok"]), "stages": stages, "errors": errors}

    def close(self) -> None:
        """Ends the process, and with it every rank."""
        self._process.kill()
        self._process.wait()
        children.end_all()
        children.remove_scratch()
        self._held.close()

    def _until(self, key: str, seconds: float) -> dict[str, Any] | None:
        """The first event with this key; None where it did not come in time."""
        self._output.follow(self._source, time.monotonic() + seconds, lambda: self._find(key) is not None)
        return self._find(key)

    def _find(self, key: str) -> dict[str, Any] | None:
        return next((event for event in self._events if key in event), None)


def free_port() -> int:
    """A TCP port that was free a moment ago, for the store of a group that has not the job's master in it."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port
