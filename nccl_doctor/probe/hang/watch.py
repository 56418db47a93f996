"""Answers to the requests about a running job: who its ranks are, and one look at them, which can be repeated."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Callable

from nccl_doctor.probe import progress
from nccl_doctor.probe.facts import hardware
from nccl_doctor.probe.facts import run
from nccl_doctor.probe.hang import flows, ranks, ras, recorder
from nccl_doctor.probe.hang.ranks import find_launchers, loaded_nccl
from nccl_doctor.probe.hang.stacks import Spy
from nccl_doctor.probe.procs import Table
from nccl_doctor.probe.tools import Unavailable

ASK_S = 3.0
"""For one rank's recorder; the ranks of a host are asked one after the other within the look's own deadline."""
DUMP_S = 8.0
"""For all ranks of the host to be told to dump."""
RAS_S = 8.0
RAS_TURNS = 4
"""Several jobs can share the port (SO_REUSEPORT), and each connection comes to one of them."""


class Watch:
    """The ranks of one job on this host, looked at as often as asked."""

    def __init__(self) -> None:
        self._spy = Spy()
        self._ranks: dict[int, dict[str, Any]] = {}
        self._found_at = time.monotonic()
        self.handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "ranks": self._find,
            "starters": lambda _request: _starters(Table()),
            "py_spy": lambda request: self._spy.install(request["bundle"]),
            "look": self._look,
            "dump": self._dump,
            "ras": lambda request: run({"ras": partial(self._ras, request)}, RAS_S + 1)["ras"],
        }

    def _find(self, _request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.JobRanks, and whether there is a py-spy."""
        table = Table()
        found = ranks.find_ranks(table)
        self._found_at = time.monotonic()
        told = run({"unnumbered": partial(ranks.unnumbered, table)}, ASK_S)
        some = told["unnumbered"] if isinstance(told["unnumbered"], list) else []
        self._ranks = {row["pid"]: row for row in [*found["ranks"], *some]}
        # a file system that hangs must not hold up what does not need it
        spy = run({"py_spy": self._spy.find}, ASK_S)["py_spy"]
        above = ranks.launchers(table, [row["pid"] for row in some])
        waiting = {"launchers": above, "starters": _starters(table)}
        return {**found, **told, **waiting, "py_spy": spy is True, "machine": os.uname().machine}

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.HostLook at the ranks whose PIDs are asked for; ``stacks`` is a mode of theirs or None."""
        deadline = time.monotonic() + request["deadline_s"]
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        table = Table()
        states = {pid: progress.look(pid, self._ranks[pid]["started"], table) for pid in pids}
        alive = {pid: told["state"] for pid, told in states.items() if told is not None}
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        stacks = self._spy.dump(alive, request["stacks"], deadline) if request["stacks"] else {}
        age_s = max((self._ranks[pid]["age_s"] for pid in pids), default=0.0)
        left_s = max(deadline - time.monotonic(), 0.5)
        around = run(
            {
                "flows": lambda: {str(pid): rows for pid, rows in flows.by_rank(list(alive)).items()},
                "killed": partial(hardware.killed, age_s),
                "xids": hardware.xids,
                "serves_ras": partial(self._serves_ras, list(alive)),
            },
            left_s,
        )
        # the server of a stopped rank is stopped as well
        awake = [pid for pid, letter in alive.items() if letter not in "Tt"]
        records = run({str(pid): partial(self._record, pid, deadline) for pid in awake}, left_s)
        return {
            "at_s": at,
            "ranks": [
                {
                    "pid": pid,
                    "state": states[pid],
                    "stack": stacks.get(pid, {"$skipped": "not asked for"}) if pid in alive else None,
                    "recorder": records.get(str(pid)),
                }
                for pid in pids
            ],
            "launchers": ranks.launchers(table, pids),
            **around,
        }

    def _serves_ras(self, pids: list[int]) -> bool:
        where = {place for pid in pids if (place := ras.address(self._ranks[pid]["told"])) is not None}
        return any(flows.listens(pids, port) for _, port in where)

    def _record(self, pid: int, deadline: float) -> Any:
        row = self._ranks[pid]
        until = min(deadline, time.monotonic() + ASK_S)
        live = recorder.live(row, until)
        if live is not None:
            return {"live": live}
        if "rank" not in row:  # a dump is known by its rank
            return None
        dump = recorder.dumped(row, row["age_s"] + time.monotonic() - self._found_at, until)
        return None if dump is None else {"dump": dump}

    def _dump(self, request: dict[str, Any]) -> list[int]:
        """Has ranks write their dumps; those that were told to."""
        deadline = time.monotonic() + DUMP_S
        wanted = [pid for pid in request["pids"] if "rank" in self._ranks.get(pid, {})]
        return [pid for pid in wanted if recorder.ask_for_dump(self._ranks[pid], deadline)]

    def _ras(self, request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.RasAnswer: reports of the job's RAS service in both forms, the same ones once.

        Raises:
            Unavailable: no rank has NCCL, the service is off or not this job's, or NCCL is too old to be asked.
        """
        deadline = time.monotonic() + RAS_S
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        loaded = {pid: found for pid in pids if (found := loaded_nccl(pid)) is not None}
        versions = sorted({found["version"] or "unknown" for found in loaded.values()})
        where = {at for pid in pids if (at := ras.address(self._ranks[pid]["told"])) is not None}
        answer = {"versions": versions, "reports": []}
        if not where:
            raise Unavailable("NCCL's RAS is switched off in the job (NCCL_RAS_ENABLE=0)")
        if not request["force"] and any(not _safe(version) for version in versions or ["unknown"]):
            told = " and ".join(versions or ["of unknown version"])
            why = f"NCCL {told}: before 2.27.3 the question can crash a job that is starting; --force asks all the same"
            return {**answer, "refused": why}
        reports: dict[str, Any] = {}
        for host, port in sorted(where):
            for turn in range(RAS_TURNS):
                report = ras.ask(host, port, json_form=turn < RAS_TURNS // 2, deadline=deadline)
                reports.setdefault(report["text"], report)
        return {**answer, "reports": list(reports.values())}


def _starters(table: Table) -> Any:
    return run({"starters": partial(find_launchers, table)}, ASK_S)["starters"]


def _safe(version: str) -> bool:
    """Before 2.27.3 a question that comes while the job starts can crash it."""
    parts = version.split(".")
    return len(parts) == 3 and all(part.isdigit() for part in parts) and tuple(map(int, parts)) >= (2, 27, 3)
