"""The ``nccl-doctor hang --watch`` command, which samples a job until it hangs, loses a rank or ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.cli.output import Out, failures
from nccl_doctor.cli.progress import Silent
from nccl_doctor.cli.snapshots import keep
from nccl_doctor.collect.hang.watching import Watcher
from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.hang.watching import HOUR_S, JobWatch, found_ranks
from nccl_doctor.judge.hang_report import ended_report, report
from nccl_doctor.model.documents import HangReport, HangWatch, WatchedRank
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold, plural
from nccl_doctor.text.shell import clean
from nccl_doctor.transport import make_transport

if TYPE_CHECKING:
    from nccl_doctor.cli.options import HostOptions, KeepOptions, LoginOptions, ReachOptions, WatchOptions
    from nccl_doctor.collect.hang.hang import HangOptions
    from nccl_doctor.hang.ending import Ending
    from nccl_doctor.snapshot.hang import HangSnapshot

LIFE_S = 7 * 86400.0  # lifetime of a connection; then it is opened again
COMMAND_S = 600.0


def watch(
    which: HostOptions,
    login: LoginOptions,
    reached: ReachOptions,
    wanted: WatchOptions,
    looks: HangOptions,
    kept: KeepOptions,
    out: Out,
) -> int:
    """Watch a job; return 1 for a hang or a failed rank, 0 if all ranks succeeded, and 3 for an unknown result."""
    command = _argv(wanted.on_hang)
    cluster = which.cluster(login.overrides(), transport=reached.transport)
    watcher = Watcher(
        cluster, lambda: make_transport(reached.transport, cluster), replace(looks, total_s=LIFE_S), Silent()
    )
    try:
        return _Watch(
            watcher, wanted, looks.interval_s, lambda sample, report: _tell(sample, report, kept, command, out), out
        ).run()
    finally:
        watcher.close()


def _argv(command: str | None) -> list[str]:
    try:
        return shell.split(command or "")
    except ValueError as error:
        raise UsageError(f"--on-hang: {command!r} can't be read as a command: {error}") from None


class _Watch:
    def __init__(
        self,
        watcher: Watcher,
        wanted: WatchOptions,
        interval_s: float,
        tell: Callable[[HangSnapshot, HangReport], None],
        out: Out,
    ) -> None:
        self._watcher, self._wanted, self._tell, self._out = watcher, wanted, tell, out
        self._job = JobWatch(wanted.after, interval_s)
        self._blind: tuple[str, ...] = ()
        self._hung = ""
        self._spoke_at = -HOUR_S

    def run(self) -> int:
        while True:
            began = time.monotonic()
            code = self._sample(began)
            if code is not None:
                return code
            time.sleep(max(0.0, began + self._wanted.every - time.monotonic()))

    def _sample(self, now: float) -> int | None:
        sample = self._watcher.sample(stacks=self._job.in_doubt)
        self._say_blind()
        if sample is None:
            self._say("this machine was unresponsive; the job is observed from now on", always=True)
            self._job.unseen()
            return None
        event = self._job.feed(sample, now)
        self._say_hourly(event.state, now)
        while event.wants is not None:
            time.sleep(event.pause_s)
            again = self._watcher.examine() if event.wants == "examination" else self._watcher.sample(stacks=False)
            event = self._job.examined(again, now)
        if event.state in ("new-job", "moves"):
            self._hung = ""
        if event.puzzle is not None:
            idle = _words(now - self._job.progress.since)
            self._say(f"no progress was seen for {idle}: {event.puzzle}", always=True)
        code: int | None = None
        if event.fault is not None and event.sample is not None:
            code = self._report(event.sample, report(event.sample, event.fault))
        elif event.ended is not None:
            code = self._ended(event.ended, sample, now)
        elif event.state == "no-job" and self._job.progress.began is None and not self._wanted.wait:
            if self._out.form != "prometheus":
                self._out.show(report(sample))
            self._say("--wait waits for a job to start", always=True)
            code = 3
        self._refresh(sample, now)
        return code

    def _ended(self, end: Ending, sample: HangSnapshot, now: float) -> int | None:
        when = f"it was watched for {_words(now - (self._job.progress.began or now))}"
        if end.verdict == "unknown":
            when += f", and its last process ended in the {_words(now - self._job.present_at)} since the sample before"
        result = ended_report(end, when)
        self._job.forget()
        goes_on = self._wanted.wait and self._wanted.keep_watching
        if end.verdict == "gone":
            self._report(sample, result)
            return None if goes_on else 1
        if goes_on:
            self._say(result.message, always=True)
            return None
        if self._out.form != "prometheus":
            self._out.show(result)
        return 0 if end.verdict == "not-hanging" else 3

    def _report(self, sample: HangSnapshot, report: HangReport) -> int | None:
        self._hung = report.diagnoses[0].name if report.diagnoses else report.verdict
        self._tell(sample, report)
        return None if self._wanted.keep_watching else 1

    def _refresh(self, sample: HangSnapshot, now: float) -> None:
        if self._out.form != "prometheus":
            return
        hosts, progress = {rank.rank: host for host, rank in found_ranks(sample)}, self._job.progress
        ranks = (
            WatchedRank(rank=rank, host=host, idle_s=now - progress.ranks.get(rank, now))
            for rank, host in hosts.items()
        )
        metrics = HangWatch(
            at=time.time(),
            job=report(sample).job if hosts else None,
            idle_s=now - progress.since if hosts else None,
            watched_s=None if progress.began is None else now - progress.began,
            ranks=tuple(ranks),
            blind=self._watcher.blind,
            hung=self._hung,
        )
        self._out.show(metrics)

    def _say_hourly(self, state: str, now: float) -> None:
        idle = (
            ""
            if state in ("moves", "no-job", "new-job", "ending")
            else f", without progress for {_words(now - self._job.progress.since)}"
        )
        words = {
            "no-job": "no job yet",
            "new-job": "watching a job",
            "moves": "the job makes progress",
            "ending": "the ranks have ended, but their launchers are still running",
        }
        if self._out.verbose or now - self._spoke_at >= HOUR_S:
            self._spoke_at = now
            self._say(f"{words.get(state, 'watching the job')}{idle}")

    def _say_blind(self) -> None:
        blind = self._watcher.blind
        if blind != self._blind:
            lost, back = sorted(set(blind) - set(self._blind)), sorted(set(self._blind) - set(blind))
            self._say(
                f"{fold(lost)}: can't be observed; trying again" if lost else f"{fold(back)}: observed again",
                always=True,
            )
            self._blind = blind

    def _say(self, text: str, *, always: bool = False) -> None:
        if always or not self._out.quiet:
            at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            sys.stderr.write(clean(self._out.hidden(f"{at} {text}")) + "\n")
            sys.stderr.flush()


def _words(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return plural(int(seconds), "second")
    return plural(minutes, "minute") if minutes < 120 else plural(minutes // 60, "hour")


def _tell(sample: HangSnapshot, report: HangReport, kept: KeepOptions, command: list[str], out: Out) -> None:
    """Write the report and the snapshot, and run the ``--on-hang`` program; print each failure on stderr."""
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    form = "json" if out.form == "prometheus" else out.form
    file = _stamped(out.file.with_suffix(".json") if form != out.form and out.file else out.file, stamp)
    shown = out._replace(form=form, file=file)
    kept = replace(kept, save=_stamped(kept.save, stamp))
    unwritten = failures(lambda: shown.show(report), lambda: keep(sample, kept))
    if command:
        unwritten += failures(lambda: _run(command, report, file))
    for sentence in unwritten:
        sys.stderr.write(clean(sentence) + "\n")


def _stamped(file: Path | None, stamp: str) -> Path | None:
    """Return the path with a timestamp before its extension.

    The path of a directory or special file is returned unchanged.
    """
    if file is None or (file.exists() and not file.is_file()):
        return file
    return file.with_name(f"{file.stem}-{stamp}{file.suffix}")


def _run(command: list[str], report: HangReport, file: Path | None) -> None:
    name = report.diagnoses[0].name if report.diagnoses else ""
    variables = {
        "NCDOCTOR_REPORT": "" if file is None else str(file.resolve()),
        "NCDOCTOR_VERDICT": report.verdict,
        "NCDOCTOR_DIAGNOSIS": name,
    }
    try:
        done = subprocess.run(
            command, env=os.environ | variables, stdin=subprocess.DEVNULL, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DoctorError(f"--on-hang: {command[0]}: {error}") from error
    if done.returncode:
        raise DoctorError(f"--on-hang: {command[0]} ended with exit status {done.returncode}")
