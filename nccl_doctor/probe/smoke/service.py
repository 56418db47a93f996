"""Handlers of requests for all-reduces.

A launcher imports torch once. The launcher takes part in one all-reduce of all hosts, or in the all-reduces of several
groups of hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nccl_doctor.probe import facts
from nccl_doctor.probe.facts.rdma import count_rdma, grown
from nccl_doctor.probe.smoke.allreduce import RankLauncher, early

if TYPE_CHECKING:
    from nccl_doctor.probe.main import Server

WORKER = "nccl_doctor.probe.smoke.worker"
"""Name of the worker module, whose source code is passed to the Python interpreter that imports torch."""
COUNT_S = 2.0  # time for a device that no longer answers to report its counters


class AllReduce:
    """A handler of requests for all-reduces on this host. The launcher of the ranks is kept between requests."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._launcher: RankLauncher | None = None

    def import_torch(self, request: dict[str, Any]) -> None:
        """Import torch in advance if there is enough memory."""
        if self._launcher is None:
            self._launcher = early(request["env"], self._server.source(WORKER))

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run an all-reduce, send the ranks' reports as events, and return an ``answers.SmokeEnd``."""
        launcher = self._started(request["env"])
        stop, ident = self._server.stop, request["id"]
        stop.clear()
        counters = _counters() if request["order"]["backend"] == "nccl" else None
        try:
            end = launcher.run(request["order"], lambda event: self._server.send({"id": ident, "event": event}), stop)
        finally:
            lines = self._end()
        return {**end, "output": lines, "counters": counters and _counters(counters)}

    def prepare_trials(self, request: dict[str, Any]) -> None:
        """Start a launcher if necessary, and wait until torch is imported."""
        try:
            self._started(request["env"]).wait_until_ready(request["deadline_s"])
        except TimeoutError:
            self._end()
            raise

    def try_group(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run this host's part of an all-reduce in a group of hosts, and keep the launcher for the next group."""
        self._server.stop.clear()
        assert self._launcher is not None
        return {"ok": self._launcher.run(request["order"], lambda _event: None, self._server.stop)["exit"] == 0}

    def end(self, _request: dict[str, Any]) -> None:
        self._end()

    def _started(self, env: dict[str, str]) -> RankLauncher:
        """Return the existing launcher if it was started with the environment variables ``env``.

        If there is no matching launcher, return a new launcher.
        """
        if self._launcher is not None and self._launcher.env != env:
            self._end()
        self._launcher = self._launcher or RankLauncher(env, self._server.source(WORKER))
        return self._launcher

    def _end(self) -> list[str]:
        launcher, self._launcher = self._launcher, None
        return [] if launcher is None else launcher.close()


def _counters(before: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the RDMA counters, or their increase since ``before``.

    Return None if there are no counters or if reading the counters takes too long.
    """
    now: Any = facts.run({"counters": count_rdma}, COUNT_S)["counters"]
    return None if not now or "$unknown" in now else now if before is None else grown(before, now)
