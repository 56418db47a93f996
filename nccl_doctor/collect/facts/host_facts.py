"""Requests and parses facts about hosts, and resolves the hosts file's names on the hosts and on this machine."""

from __future__ import annotations

import base64
import json
import re
import secrets
import shlex
import socket
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import MalformedError, NoAnswerError, ProbeError, problems, typed_items
from nccl_doctor.crew.parallel import Window, ask_all, failure_of, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.launch.line import meeting_name, read_line
from nccl_doctor.model.base import MALFORMED, IpAddress, OpenList, Unknown, ip_address, marks, unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import place_of
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.probe.tools import SYSTEM
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.network import FirewallFacts, Names, ResolverAnswer, literal
from nccl_doctor.snapshot.surroundings import Outside
from nccl_doctor.snapshot.system import Clock, ResourceLimits
from nccl_doctor.text.inet import numeric
from nccl_doctor.transport.base import AccessError, Allowance, Channel, Transport
from nccl_doctor.transport.ssh.settings import ssh_alias

GRACE_S = 2.0  # time for the answer beyond the deadline of the collectors on the host


NO_FACTS = "the probe returned no data"

PATH_S = 10.0  # time for a host that answered nothing to report which of its packets are lost


@dataclass(frozen=True)
class FactLimits:
    """Time limit of the collectors in seconds, and whether ``sudo -n`` may be tried on the hosts."""

    timeout_s: float = 8.0
    sudo: bool = False


_MOST_TABLES = 8  # answers used for the common one; each is a table of all names


class CommonNames:
    """For each name, the result that was reported first, except each host's results for its own names."""

    def __init__(self, cluster: Cluster) -> None:
        self._wanted = dict.fromkeys(sorted({cluster.master_addr, *(node.address for node in cluster.nodes)}))
        self._lock = threading.Lock()
        self._tables: list[dict[str, ResolverAnswer]] = [{}]
        self._asked: dict[str, tuple[dict[str, ResolverAnswer], str]] = {}
        self._request = _packed(dict.fromkeys(self._wanted))

    @property
    def common(self) -> dict[str, ResolverAnswer]:
        """The name resolution results so far, which apply to every host that did not report different results."""
        return self._tables[-1]

    def known_to(self, node: Node) -> str:
        """Return the names for a host to resolve and the known results, packed for probe/facts/network.py.

        Later calls for the same host return the same text.
        """
        with self._lock:
            return self._asked.setdefault(node.name, (self.common, self._request))[1]

    def learn(self, node: Node, names: Names) -> None:
        """Add a host's name resolution results; addresses replace an earlier error."""
        with self._lock:
            before = self.common
            if len(self._tables) > _MOST_TABLES:
                return
            new = {
                name: ResolverAnswer.model_construct(addresses=answer.addresses, error=answer.error)
                for name, answer in names.own.items()
                if name in self._wanted and name not in (node.address, node.name) and literal(name) is None
                if name not in before or (answer.addresses and not before[name].addresses)
                if not (answer.error or "").startswith("no answer in ")
            }
            if new:
                self._tables.append({**before, **new})
                rows = {name: [list(result.addresses), result.error] for name, result in self.common.items()}
                self._request = _packed({name: rows.get(name) for name in self._wanted})

    def final(self, name: str, names: Names | Unknown) -> Names | Unknown:
        """Return a host's name resolution results as differences from the final table, which all hosts share."""
        if isinstance(names, Unknown):
            return names
        asked, last = self._asked[name][0], self.common
        changed = [] if asked is last else [key for key, answer in asked.items() if last[key] != answer]
        return names.beside(asked).relative_to(last, changed)


def _packed(names: dict[str, list[Any] | None]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(names).encode())).decode()


def look_up(names: Iterable[str], within_s: float) -> tuple[dict[str, tuple[IpAddress, ...]], tuple[str, ...]]:
    """Return the addresses of each name, and names that are only aliases in ~/.ssh/config; late results are omitted."""
    wanted = [name for name in dict.fromkeys(names) if numeric(name) is None]
    answers = fan_out(_look_up, wanted, until=time.monotonic() + within_s)
    pairs = {name: pair for name, pair in zip(wanted, answers, strict=True) if pair and not isinstance(pair, Exception)}
    addresses = {name: known for name, (known, _) in pairs.items() if known}
    return addresses, tuple(name for name, (_, is_alias) in pairs.items() if is_alias)


def _look_up(name: str) -> tuple[tuple[IpAddress, ...], bool]:
    if known := _addresses(name):
        return known, False
    alias = ssh_alias(name)
    return _addresses(alias), alias is not None


def _addresses(name: str | None) -> tuple[IpAddress, ...]:
    if name is None:
        return ()
    try:
        results = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()  # a name that does not resolve confirms nothing
    return tuple(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in results))


LookOutside = Callable[[Node, float], Outside | Unknown | None]
"""A function that examines the host of a node's container before a deadline. The function returns None if the node is
not a container.
"""


class Asking:
    """Requests for facts.

    Later hosts receive the name resolution results of the first hosts and report only differences.
    """

    def __init__(
        self, cluster: Cluster, limits: FactLimits, until: float, outside: LookOutside = lambda _node, _deadline: None
    ) -> None:
        self._cluster, self._limits, self._until, self._outside = cluster, limits, until, outside
        self._facts: dict[str, HostFacts] = {}
        self._names = CommonNames(cluster)
        self._launcher = read_line(shlex.split(cluster.line)).launcher if cluster.line else ""

    def __call__(self, session: ProbeSession, share: float) -> None:
        """Query one host, or wait again for a late answer; raise NoAnswerError if more time might help."""
        timeout_s = self._limits.timeout_s
        deadline = time.monotonic() + max(0.1, min(share * timeout_s, self._until - time.monotonic())) + GRACE_S
        cluster, node = self._cluster, session.node
        answer = session.ask(
            answers.FACTS,
            deadline,
            names=self._names.known_to(node),
            trial_port=cluster.master_port if node.node_rank == 0 else None,
            master_port=cluster.master_port,
            deadline_s=timeout_s,
            sudo=self._limits.sudo,
            env=node.env,
            python=node.python,
            same=list(cluster.same),
            launcher=self._launcher,
            inside=bool(place_of(node)),
        )
        around = self._outside(node, deadline)
        answer["outside"] = None if around is None else around.model_dump(by_alias=True)
        if isinstance(around, Outside) and around.job_limits is not None:
            answer["limits"] = around.job_limits.model_dump()
        answer["clock"] = _read_clock(session, deadline).model_dump(by_alias=True)
        facts = typed(answer)
        if isinstance(facts.resolution, Names):
            self._names.learn(node, facts.resolution)
        self._facts[node.name] = facts
        late = [name for name, fact in facts if isinstance(fact, Unknown) and fact.late]
        if late and session.hello.load is not None and session.hello.load.busy:
            raise NoAnswerError(f"no answer in time to {', '.join(late)}")

    def all(self) -> dict[str, HostFacts]:
        return {
            name: facts.model_copy(update={"resolution": self._names.final(name, facts.resolution)})
            for name, facts in self._facts.items()
        }

    @property
    def common(self) -> dict[str, ResolverAnswer]:
        """The name resolution results that apply to every host, except where a host's own facts differ."""
        return self._names.common


def firewalls_again(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], limits: FactLimits
) -> dict[str, HostFacts]:
    """Return the facts with the current firewall rules, whose counters have advanced since the first query.

    The text of long rule sets and the rules of large tables, which the first query omits, are added.
    """

    def ask(session: ProbeSession) -> HostFacts:
        deadline = time.monotonic() + limits.timeout_s + GRACE_S
        answer = session.ask(answers.FIREWALL, deadline, deadline_s=limits.timeout_s, sudo=limits.sudo)
        host_facts, after = facts[session.node.name], answer.firewall
        before = host_facts.firewall
        if isinstance(before, FirewallFacts) and isinstance(after, FirewallFacts):
            if before.nft_left_out:  # without counters from before, nothing can be compared
                both = before.model_copy(update={"nft": after.nft, "nft_text": after.nft_text, "nft_left_out": ()})
                return host_facts.model_copy(update={"firewall": both})
            if before.nft_text is None:
                before = before.model_copy(update={"nft_text": after.nft_text})
        return host_facts.model_copy(update={"firewall": before, "firewall_after": after})

    results = zip(sessions, ask_all(ask, sessions, window=Window()), strict=True)
    return {session.node.name: result for session, result in results if isinstance(result, HostFacts)}


def resolve_meeting(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], cluster: Cluster
) -> dict[str, HostFacts]:
    """Have each host resolve the host name of the c10d rendezvous, and return the facts with the results added."""
    line = read_line(shlex.split(cluster.line)) if cluster.line else None
    engines = (host.engines for host in facts.values())
    name = None if line is None else meeting_name(line, len(cluster.nodes), engines)
    if name is None:
        return facts

    def ask(session: ProbeSession) -> HostFacts:
        host_facts, deadline = facts[session.node.name], time.monotonic() + NAME_S + GRACE_S
        answer = session.ask(answers.RESOLVE, deadline, names=[name], deadline_s=NAME_S)
        known = host_facts.resolution
        if not isinstance(known, Names) or answer.keys() != {name}:
            return host_facts
        return host_facts.model_copy(update={"resolution": known.model_copy(update={"own": {**known.own, **answer}})})

    results = zip(sessions, ask_all(ask, sessions, window=Window()), strict=True)
    return facts | {session.node.name: result for session, result in results if isinstance(result, HostFacts)}


NAME_S = 5.0  # time for a host's resolver, as for its other names


def _read_clock(session: ProbeSession, deadline: float) -> Clock | Unknown:
    """Return how far the host's clock is ahead of this machine's clock (as in NTP), accurate to half a round trip."""
    sent = time.time()
    try:
        # sent again: a late answer to an earlier question has an old time
        there = session.wait(answers.CLOCK, session.send(answers.CLOCK, deadline), deadline)
    except ProbeError as error:
        return unknown(str(error))
    received = time.time()
    return Clock(offset_s=there - (sent + received) / 2, error_s=max(received - sent, 0.0) / 2)


OPEN_LISTS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(mark.item) for name, mark in marks(HostFacts, OpenList).items()
}


def typed(answer: dict[str, Any]) -> HostFacts:
    """Return the probe's answer as facts. Malformed facts become unknown; a malformed answer raises MalformedError.

    In lists to which any local user can add items, only malformed items are removed and counted. Other lists, such as
    routes and GPUs, become unknown as a whole if an item is malformed, since an incomplete list would be wrong.
    """
    misfits: dict[str, str] = {}
    answer = {**answer, "misfits": misfits}
    for _ in HostFacts.model_fields:
        try:
            return HostFacts.model_validate(answer)
        except ValidationError as error:
            faults = problems(error)
            if not faults.keys() <= HostFacts.model_fields.keys():
                raise MalformedError(f"facts: {min(faults)[:80]!r} is none") from error
            for field, words in faults.items():
                items, kind = answer.get(field), OPEN_LISTS.get(field)
                fitting, left_out = typed_items(kind, items) if kind and isinstance(items, list) else ((), None)
                if fitting and left_out:
                    answer[field], misfits[field] = fitting, left_out
                else:
                    answer[field] = {"$unknown": MALFORMED + words}
    raise MalformedError("facts that do not fit their types")


def failure(error: Exception, session: ProbeSession, until: float) -> AnyAccessFailure:
    """Return why a host returned no facts."""
    result = failure_of(error, "facts", NO_FACTS)
    if not isinstance(error, NoAnswerError) or not session.large_packets_vanish(min(until, time.monotonic() + PATH_S)):
        return result
    detail = (
        "the probe runs there and its short answers come, but its long ones do not: the host sends them again and "
        "again, so large packets vanish on their way to this machine"
    )
    return result.model_copy(update={"detail": detail})


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
"""Shell script for the host of a container; the script lists devices in the same way as probe/facts/host.py."""
_MOST = 8 << 20  # bytes that it may print: /etc/hosts of a cluster has a line for each host
_LIMIT = re.compile(r"(Max open files|Max locked memory) +(unlimited|\d{1,20}) +(unlimited|\d{1,20})\b")


def look_outside(
    transport: Transport, wanted: Collection[str], node: Node, deadline: float
) -> Outside | Unknown | None:
    """Examine the host on which a node's container runs, or return None if the node is not a container.

    The result includes the ``wanted`` names that are in the /etc/hosts file of the container's host.
    """
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
            return parse_outside(_lines(channel, f"{mark} end", deadline), mark, options, wanted)
        finally:
            channel.close()
    except (AccessError, OSError, EOFError, ValueError) as error:
        why = error.failure.detail if isinstance(error, AccessError) else error
        words = "no answer in time" if isinstance(error, TimeoutError) else why
        return unknown(f"the host around the container: {words}")


def parse_outside(
    lines: Iterable[str], mark: str, options: InsideOptions, wanted: Collection[str]
) -> Outside | Unknown:
    """Parse the output of :data:`SCRIPT`, in which each part begins with a line that contains a marker and a name."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    part: list[str] = []
    for line in lines:
        marked, separator, name = line.partition(f"{mark} ")
        if separator and not marked.strip():
            part = parts[name] = []
        else:
            part.append(line)
    words = (parts["shm"] or [""])[-1].split()  # the output of df -P -k, in KiB
    names = (name for line in parts["hosts"] for name in line.partition("#")[0].split()[1:])  # hosts(5)
    try:
        return Outside(
            runtime=options.runtime,
            name=options.name,
            place=options.place,
            network=next(iter(parts["network"]), None),
            hostname=next(iter(parts["hostname"]), ""),
            limits=_read_limits(parts["limits"]),
            shm_bytes=int(words[1]) * 1024 if len(words) >= 6 and re.fullmatch("[0-9]{1,15}", words[1]) else None,
            devices=tuple(parts["devices"]),
            names=tuple(dict.fromkeys(name for name in names if name in wanted)),
            job_limits=_read_limits(parts["job limits"]),
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


def _read_limits(lines: list[str]) -> ResourceLimits | None:
    """Return the relevant limits from /proc/PID/limits (proc_pid_limits(5)), or None if a limit is missing."""
    rows = {match[1]: match.groups()[1:] for line in lines if (match := _LIMIT.match(line))}
    if len(rows) < 2:
        return None
    nofile, memlock = ([None if cap == "unlimited" else int(cap) for cap in rows[name]] for name in sorted(rows)[::-1])
    return ResourceLimits(
        nofile_soft=nofile[0], nofile_hard=nofile[1], memlock_soft=memlock[0], memlock_hard=memlock[1]
    )
