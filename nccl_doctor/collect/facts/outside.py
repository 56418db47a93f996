"""A small look at the host around a container: what its shell tells, with no Python there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator

from pydantic import ValidationError

from nccl_doctor.model.cluster import Node
from nccl_doctor.probe.tools import SYSTEM
from nccl_doctor.snapshot import Outside, ResourceLimits, Unknown, unknown
from nccl_doctor.transport.base import AccessError, Allowance, Channel, Transport
from nccl_doctor.transport.containers import InsideOptions

SCRIPT = """\
LC_ALL=C; PATH={path}; export LC_ALL PATH
echo {mark} network; readlink /proc/self/ns/net
echo {mark} hostname; cat /proc/sys/kernel/hostname
echo {mark} limits; cat /proc/self/limits
echo {mark} job limits; cat /proc/{pid}/limits
echo {mark} shm; df -P -k /dev/shm
echo {mark} devices
for one in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/infiniband/uverbs*; do
    [ ! -e "$one" ] || echo "$one"
done
echo {mark} hosts; cat /etc/hosts
echo {mark} end
exit
"""
"""For /bin/sh; the devices are those of probe/facts/host.py."""

_MOST = 8 << 20
"""Bytes that it may print: a cluster's /etc/hosts has a line for each host."""
_LIMIT = re.compile(r"(Max open files|Max locked memory) +(unlimited|\d{1,20}) +(unlimited|\d{1,20})\b")


def look(transport: Transport, wanted: Collection[str], node: Node, deadline: float) -> Outside | Unknown | None:
    """What the host of a node's container tells, of names those ``wanted``; None where the node is no container."""
    options = node.options(InsideOptions)
    if options.runtime is None:
        return None
    pid = options.name if options.runtime == "enter" else "-"
    host = node.model_copy(update={"access": {k: v for k, v in node.access.items() if k != InsideOptions.engine}})
    mark = f"ncdoctor-{secrets.token_hex(8)}"
    try:
        channel = transport.open(host, "exec /bin/sh", deadline)
        try:
            channel.send(SCRIPT.format(mark=mark, pid=pid, path=":".join(SYSTEM)).encode(), deadline)
            return parse(_lines(channel, f"{mark} end", deadline), mark, options, wanted)
        finally:
            channel.close()
    except AccessError as error:
        return unknown(f"the host around the container: {error.failure.detail}")
    except TimeoutError:
        return unknown("the host around the container: no answer in time")
    except (OSError, EOFError, ValueError) as error:
        return unknown(f"the host around the container: {error}")


def parse(lines: Iterable[str], mark: str, options: InsideOptions, wanted: Collection[str]) -> Outside | Unknown:
    """What the script printed, each part behind a line with the mark and its name."""
    parts: dict[str, list[str]] = {}
    part: list[str] = []
    for line in lines:
        marked, found, name = line.partition(f"{mark} ")
        if found and not marked.strip():
            part = parts[name] = []
        else:
            part.append(line)
    try:
        return Outside(
            runtime=options.runtime,
            name=options.name,
            place=options.place,
            network=_one(parts, "network"),
            hostname=_one(parts, "hostname") or "",
            limits=_limits(parts.get("limits", [])),
            shm_bytes=_size(parts.get("shm", [])),
            devices=tuple(parts.get("devices", [])),
            names=tuple(dict.fromkeys(name for name in _names(parts.get("hosts", [])) if name in wanted)),
            job_limits=_limits(parts.get("job limits", [])),
        )
    except ValidationError as error:
        return unknown(f"the host around the container told something else: {error.errors()[0]['msg']}")


def _lines(channel: Channel, last: str, deadline: float) -> Iterator[str]:
    allowance = Allowance(_MOST)
    while (line := channel.read_line(deadline)) is not None:
        allowance.spend(line)
        text = line.decode(errors="replace")
        if text == last:
            return
        yield text


def _one(parts: dict[str, list[str]], name: str) -> str | None:
    return next(iter(parts.get(name, [])), None)


def _limits(lines: list[str]) -> ResourceLimits | None:
    """Those of proc_pid_limits(5) that matter."""
    told = {match[1]: match.groups()[1:] for line in lines if (match := _LIMIT.match(line))}
    if len(told) < 2:
        return None
    nofile, memlock = ([None if one == "unlimited" else int(one) for one in told[name]] for name in sorted(told)[::-1])
    return ResourceLimits(
        nofile_soft=nofile[0], nofile_hard=nofile[1], memlock_soft=memlock[0], memlock_hard=memlock[1]
    )


def _size(lines: list[str]) -> int | None:
    """Bytes of the file system that ``df -P -k`` tells of."""
    words = lines[-1].split() if lines else []
    return int(words[1]) * 1024 if len(words) >= 6 and words[1].isdigit() and len(words[1]) < 16 else None


def _names(lines: list[str]) -> Iterator[str]:
    """The names of hosts(5)."""
    for line in lines:
        yield from line.partition("#")[0].split()[1:]
