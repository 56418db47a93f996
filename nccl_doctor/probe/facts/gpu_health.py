"""The GPUs' health: nvidia-smi's counters, and the errors (Xid) that the driver wrote into the kernel's log.

What the kernel wrote about processes that it killed for want of memory, since the job began.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import Any

from nccl_doctor.probe import gpus
from nccl_doctor.probe.reading import Unavailable, fact

HEALTH_FIELDS = ("index", "pci.bus_id", "mig.mode.current", "ecc.errors.uncorrected.volatile.total", "fabric.state")
ROW_FIELDS = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")
"""A query of its own: ``--query-remapped-rows``, known since the A100's drivers."""
NOT_A_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{1,4})(?:, *(.*))?")
DAY_S = 86_400
KMSG = "/dev/kmsg"
MAX_RECORDS = 100_000


fact("gpus", slow=True)(gpus.list_gpus)


@fact("gpu_health", slow=True)
def read_gpu_health(deadline: float) -> list[dict[str, Any]]:
    """snapshot.GpuHealth of each GPU; none where nothing of NVIDIA's is there at all.

    Raises:
        Unavailable: a driver without nvidia-smi, or nvidia-smi fails.
    """
    fields = list(HEALTH_FIELDS)
    while True:
        try:
            found = parse_gpu_health(gpus.query("gpu", fields, deadline), tuple(fields))
            break
        except Unavailable as error:
            # A driver that does not know a field refuses the whole query.
            unknown = NOT_A_FIELD.search(str(error))
            if not unknown or unknown.group(1) not in fields:
                raise
            fields.remove(unknown.group(1))
    rows = _rows(deadline) if found else {}
    for gpu in found:
        gpu["remap_pending"], gpu["remap_failed"] = rows.get(str(gpu["bus_id"]), (None, None))
    return found


def parse_gpu_health(text: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of the query; a line that is no row is passed over, as is a value not understood."""
    rows = [dict(zip(fields, (part.strip() for part in line.split(",")))) for line in text.splitlines()]
    return [_health(row) for row in rows if len(row) == len(fields) and re.fullmatch(r"[0-9]{1,4}", row["index"])]


def parse_rows(text: str) -> dict[str, tuple[bool | None, bool | None]]:
    """Whether rows wait for their replacement, and whether that failed, by bus id."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(ROW_FIELDS):
            found[parts[0].lower()] = (_flag(parts[1]), _flag(parts[2]))
    return found


@fact("xids")
def xids(path: str = KMSG) -> list[dict[str, Any]]:
    """snapshot.Xid of the last day, oldest first; none where no NVIDIA driver is there.

    Raises:
        PermissionError: the kernel's log is for root alone (kernel.dmesg_restrict).
    """
    if path == KMSG and not any(os.path.exists(sign) for sign in gpus.DEVICES):
        return []
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unavailable("there is no " + path) from None
    try:
        return parse_xids(records(number), time.clock_gettime(time.CLOCK_MONOTONIC))
    finally:
        os.close(number)


def parse_xids(records: list[str], now_s: float) -> list[dict[str, Any]]:
    """The errors among records of /dev/kmsg (``6,1234,987654321,-;text``; the third is microseconds since boot)."""
    found = []
    for record in records:
        head, _, text = record.partition(";")
        match = XID.search(text)
        stamp = head.split(",")[2:3]
        if match and stamp and re.fullmatch(r"[0-9]{1,18}", stamp[0]):
            age_s = max(0.0, now_s - int(stamp[0]) / 1e6)
            if age_s <= DAY_S:
                words = (match.group(3) or "").splitlines()[:1]
                told = {"bus_id": match.group(1).lower(), "number": int(match.group(2)), "text": "".join(words)[:200]}
                found.append({**told, "age_s": round(age_s, 1)})
    return found


def records(number: int) -> list[str]:
    """Each read(2) of /dev/kmsg gives one record; EPIPE says that some were overwritten meanwhile."""
    found: list[str] = []
    while len(found) < MAX_RECORDS:
        try:
            record = os.read(number, 8192)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue
            raise
        if not record:
            break
        found.append(record.decode("utf-8", "replace"))
    return found


def _rows(deadline: float) -> dict[str, tuple[bool | None, bool | None]]:
    """The rows' state by bus id; none where the driver or the GPUs know no remapping."""
    try:
        return parse_rows(gpus.query("remapped-rows", ROW_FIELDS, deadline))
    except Unavailable:
        return {}


def _health(row: dict[str, str]) -> dict[str, Any]:
    errors = row.get("ecc.errors.uncorrected.volatile.total", "")
    fabric = row.get("fabric.state", "")
    return {
        "index": int(row["index"]),
        "bus_id": row.get("pci.bus_id", "").lower() or None,
        "mig": _flag(row.get("mig.mode.current", "")),
        "ecc_uncorrected": int(errors) if re.fullmatch(r"[0-9]{1,15}", errors) else None,
        "fabric": fabric if re.fullmatch(r"[A-Za-z][A-Za-z ]{0,30}", fabric) and fabric != "N/A" else None,
    }


def _flag(text: str) -> bool | None:
    """nvidia-smi's words for yes and no; None for "[N/A]" and the like."""
    return {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}.get(text.lower())


KILLED = re.compile(r"(?:Out of memory|out of memory): Killed process ([0-9]{1,10}) \(([^)]{0,64})\)")
"""mm/oom_kill.c; "Memory cgroup out of memory: Killed process …" for a container's own limit."""
MOST_KILLED = 50


def killed(since_s: float) -> list[dict[str, Any]]:
    """snapshot.OomKill of the last ``since_s`` seconds, oldest first.

    Raises:
        PermissionError: the kernel's log is for root alone.
        FileNotFoundError: there is none here.
    """
    number = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return parse_killed(records(number), time.clock_gettime(time.CLOCK_MONOTONIC), since_s)
    finally:
        os.close(number)


def parse_killed(records: list[str], now_s: float, since_s: float) -> list[dict[str, Any]]:
    """The kills among records of /dev/kmsg, whose third field is microseconds since boot."""
    found = []
    for record in records:
        head, _, text = record.partition(";")
        match, stamp = KILLED.search(text), head.split(",")[2:3]
        if match and stamp and stamp[0].isdigit():
            age_s = max(0.0, now_s - int(stamp[0]) / 1e6)
            if age_s <= since_s:
                found.append({"pid": int(match[1]), "name": match[2], "age_s": round(age_s, 1)})
    return found[-MOST_KILLED:]
