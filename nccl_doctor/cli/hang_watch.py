"""``nccl-doctor hang --watch``: sample a job until it hangs, loses a rank or ends."""

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
from nccl_doctor.hang.ending import ending
from nccl_doctor.hang.verdict import judge_hang
from nccl_doctor.judge.hang_report import ended_report, report
from nccl_doctor.judge.hang_watch import JobProgress, found_ranks, paired
from nccl_doctor.model.documents import STANDS_STILL, HangReport, HangWatch, WatchedRank
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold, plural
from nccl_doctor.text.shell import clean
from nccl_doctor.transport import make_transport

if TYPE_CHECKING:
    from nccl_doctor.cli.options import HostOptions, KeepOptions, LoginOptions, ReachOptions, WatchOptions
    from nccl_doctor.collect.hang.hang import HangOptions
    from nccl_doctor.snapshot.hang import HangSnapshot, JobRank

LIFE_S = 7 * 86400.0  # lifetime of a connection; then it is opened again
HOUR_S = 3600.0
CONFIRM_S = 2.0  # until a missing job is looked for once more
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
    """Watch a job; return 1 at the first hang or failed rank, 0 if all ranks ended well, 3 if that is unknown."""
    command = _argv(wanted.on_hang)
    cluster = which.cluster(login.overrides(), transport=reached.transport)
    watcher = Watcher(
        cluster, lambda: make_transport(reached.transport, cluster), replace(looks, total_s=LIFE_S), Silent()
    )
    try:
        return _Watch(
            watcher, wanted, looks.interval_s, lambda sample, found: _tell(sample, found, kept, command, out), out
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
        self._watcher, self._wanted, self._interval_s, self._tell, self._out = watcher, wanted, interval_s, tell, out
        self._progress = JobProgress()
        self._last: HangSnapshot | None = None
        self._doubt = False
        self._blind: tuple[str, ...] = ()
        self._hung = self._dead = ""
        self._spoke_at = -HOUR_S
        self._ranks: dict[int, tuple[str, JobRank]] = {}  # where each was last found
        self._present_at = 0.0  # when a rank was last found
        self._puzzle, self._puzzled_at = "", -HOUR_S
        self._reported = False  # a hang was reported, and the job has made no progress since

    def run(self) -> int:
        """Sample the job until it hangs, loses a rank or ends."""
        while True:
            began = time.monotonic()
            code = self._sample(began)
            if code is not None:
                return code
            time.sleep(max(0.0, began + self._wanted.every - time.monotonic()))

    def _sample(self, now: float) -> int | None:
        sample = self._watcher.sample(stacks=self._doubt)
        self._say_blind()
        if sample is None:
            self._say("this machine was unresponsive; the job is observed from now on", always=True)
            self._progress = JobProgress(began=self._progress.began)
            return None
        before, self._last = self._last, sample
        state = self._progress.feed(sample, now)
        found = {rank.rank: (host, rank) for host, rank in found_ranks(sample)}
        self._ranks = found if state == "new-job" else self._ranks | found
        self._present_at = now if found else self._present_at
        self._doubt = state != "moves"
        self._say_hourly(state, now)
        code: int | None = None
        if state == "no-job":
            code = self._no_job(sample, now)
        elif state in ("new-job", "moves"):
            self._hung, self._reported = "", False
        if state in ("moves", "still") and before is not None:
            code = self._looks_dead(paired(before, sample))
        if code is None and state == "still" and not self._reported and self._progress.is_due(now, self._wanted.after):
            code = self._examine(now)
        self._refresh(sample, now)
        return code

    def _no_job(self, sample: HangSnapshot, now: float) -> int | None:
        if self._progress.began is None:
            if self._wanted.wait:
                return None
            if self._out.form != "prometheus":
                self._out.show(report(sample))
            self._say("--wait waits for a job to start", always=True)
            return 3
        time.sleep(CONFIRM_S)
        again = self._watcher.sample(stacks=False)
        if again is None or self._progress.feed(again, now) != "no-job":
            return None
        end = ending(self._ranks.values(), (sample, again))
        when = f"it was watched for {_words(now - self._progress.began)}"
        if end.verdict == "unknown":
            when += f", and its last process ended in the {_words(now - self._present_at)} since the sample before"
        found = ended_report(end, when)
        self._progress, self._ranks = JobProgress(), {}
        goes_on = self._wanted.wait and self._wanted.keep_watching
        if end.verdict == "gone":
            self._report(sample, found)
            return None if goes_on else 1
        if goes_on:
            self._say(found.message, always=True)
            return None
        if self._out.form != "prometheus":
            self._out.show(found)
        return 0 if end.verdict == "not-hanging" else 3

    def _looks_dead(self, both: HangSnapshot) -> int | None:
        """Look closely if a rank is gone; report it if others wait for it, or if it is still gone one sample later."""
        if self._reported or judge_hang(both, homes=self._homes).verdict != "gone":
            self._dead = ""
            return None
        sample = self._watcher.examine()
        judged = None if sample is None else judge_hang(sample, homes=self._homes)
        if sample is None or judged is None or judged.verdict != "gone":
            return None
        name = ",".join(map(str, judged.culprits))
        if judged.evidence.waiting or self._dead == name:
            return self._report(sample, report(sample, homes=self._homes))
        self._dead = name
        return None

    def _examine(self, now: float) -> int | None:
        """Examine the job as ``hang`` does, and once more if it hangs."""
        first = self._watcher.examine()
        found = None if first is None else report(first, patient=False, homes=self._homes)
        if found is not None and found.verdict in STANDS_STILL and not self._watcher.blind:
            time.sleep(self._interval_s)
            second = self._watcher.examine()
            again = None if second is None else report(second, patient=False, homes=self._homes)
            if second is not None and again is not None and again.verdict == found.verdict:
                return self._report(second, again)
            found = again
        if found is not None and found.verdict in ("not-hanging", "slow"):
            self._progress.moved(now)
            return None
        # it is examined again later, and the time without progress continues
        self._progress.samples = 0
        is_new = found is not None and (found.message != self._puzzle or now - self._puzzled_at >= HOUR_S)
        if found is not None and found.verdict == "unknown" and is_new:
            self._puzzle, self._puzzled_at = found.message, now
            self._say(f"no progress was seen for {_words(now - self._progress.since)}: {found.message}", always=True)
        return None

    def _report(self, sample: HangSnapshot, found: HangReport) -> int | None:
        self._hung = found.diagnoses[0].name if found.diagnoses else found.verdict
        self._reported = True
        self._tell(sample, found)
        if not self._wanted.keep_watching:
            self._refresh(sample, time.monotonic())
            return 1
        return None

    def _refresh(self, sample: HangSnapshot, now: float) -> None:
        """Write the metrics of the sample, if requested."""
        if self._out.form != "prometheus":
            return
        hosts, since = {rank.rank: host for host, rank in found_ranks(sample)}, self._progress.ranks
        ranks = (WatchedRank(rank=rank, host=host, idle_s=now - since.get(rank, now)) for rank, host in hosts.items())
        began = self._progress.began
        metrics = HangWatch(
            at=time.time(),
            job=report(sample).job if hosts else None,
            idle_s=now - self._progress.since if hosts else None,
            watched_s=None if began is None else now - began,
            ranks=tuple(ranks),
            blind=self._watcher.blind,
            hung=self._hung,
        )
        self._out.show(metrics)

    @property
    def _homes(self) -> dict[int, str]:
        return {number: host for number, (host, _) in self._ranks.items()}

    def _say_hourly(self, state: str, now: float) -> None:
        idle = (
            ""
            if state in ("moves", "no-job", "new-job")
            else f", without progress for {_words(now - self._progress.since)}"
        )
        words = {"no-job": "no job yet", "new-job": "a job is watched", "moves": "the job makes progress"}
        if self._out.verbose or now - self._spoke_at >= HOUR_S:
            self._spoke_at = now
            self._say(f"{words.get(state, 'the job is watched')}{idle}")

    def _say_blind(self) -> None:
        blind = self._watcher.blind
        if blind != self._blind:
            lost, back = sorted(set(blind) - set(self._blind)), sorted(set(self._blind) - set(blind))
            self._say(
                f"{fold(lost)}: can't be observed; tried again" if lost else f"{fold(back)}: observed again",
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


def _tell(sample: HangSnapshot, found: HangReport, kept: KeepOptions, command: list[str], out: Out) -> None:
    """Write the report and the snapshot, and run the program of ``--on-hang``; report each failure."""
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    form = "json" if out.form == "prometheus" else out.form
    file = _stamped(out.file.with_suffix(".json") if form != out.form and out.file else out.file, stamp)
    shown = out._replace(form=form, file=file)
    kept = replace(kept, save=_stamped(kept.save, stamp))
    unwritten = failures(lambda: shown.show(found), lambda: keep(sample, kept))
    if command:
        unwritten += failures(lambda: _run(command, found, file))
    for sentence in unwritten:
        sys.stderr.write(clean(sentence) + "\n")


def _stamped(file: Path | None, stamp: str) -> Path | None:
    """Return a file name with a time stamp before its extension; a name that is no plain file is unchanged."""
    if file is None or (file.exists() and not file.is_file()):
        return file
    return file.with_name(f"{file.stem}-{stamp}{file.suffix}")


def _run(command: list[str], found: HangReport, file: Path | None) -> None:
    name = found.diagnoses[0].name if found.diagnoses else ""
    variables = {
        "NCDOCTOR_REPORT": "" if file is None else str(file.resolve()),
        "NCDOCTOR_VERDICT": found.verdict,
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
