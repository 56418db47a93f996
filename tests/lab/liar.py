"""A host that lies, run after run: ``python -m tests.lab.liar --runs 500 --through-cli 120``.

Each run has one of three hosts answer through tests/lab/lying_probe.py, with another seed, or be a server that lets
nobody in and says what it likes. Some go through the real command line in a lab, by paramiko or the ssh program; the
others without the tool's start-up over local probes, as they are or behind an engine's program. Whatever the host says,
there is a report with an exit code of 0, 1 or 3, no check crashes, the honest hosts are judged, the liar is named where
nothing of it could be used, memory stays bounded, and it ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nccl_doctor.cli.hang import exit_code as hang_exit_code
from nccl_doctor.cli.output import exit_code, for_html
from nccl_doctor.cli.progress import Silent
from nccl_doctor.collect.hang.hang import HangOptions, take
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import open_run
from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.judge.diagnose import Judge, judge
from nccl_doctor.judge.hang_report import report as hang_report
from nccl_doctor.model.cluster import Cluster, Node, access
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.report.render import FORMS, RenderOptions, render
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.transport.base import Transport
from nccl_doctor.transport.containers.transport import InsideTransport
from nccl_doctor.transport.kube.pods import KubeTransport
from nccl_doctor.transport.process import LocalTransport
from nccl_doctor.transport.slurm.transport import SlurmTransport
from nccl_doctor.transport.ssh.choice import ChoosingTransport
from tests.hang.made_up import Job
from tests.lab import warm
from tests.lab.cluster import Lab
from tests.lab.lying_probe import LENGTHS, PIECES
from tests.lab.warm import DOCTOR
from tests.transport.servers import LOOPBACK, doors, for_ever, keygen, misbehaving, public

LYING_PROBE = Path(__file__).with_name("lying_probe.py")
PROJECT = LYING_PROBE.parents[2]
NAMES = ("node1", "node2", "node3")
MOST_MIB = 300
"""That a run may take: the tool's whole process, or what a process that had other tests before grows by."""
LONGEST_S = 200
"""Of a run, which has half of that by itself; a busy machine may take the rest."""
About = Literal["facts", "smoke", "hang", "door"]
TURNS: tuple[About, ...] = ("smoke", "facts", "facts", "hang", "facts", "door", "facts", "facts")
"""What the lies are about, run after run."""
LETTERS: dict[str, About] = {"s": "smoke", "f": "facts", "h": "hang", "d": "door"}
WATCHED = (
    "import resource,subprocess,sys;done=subprocess.run(sys.argv[1:]);"
    "print('@peak',resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss//1024,file=sys.stderr);"
    "sys.exit(done.returncode)"
)
ENGINES: dict[str, tuple[Callable[[], Transport], dict[str, Any]]] = {
    "local": (LocalTransport, {}),
    "slurm": (SlurmTransport, {"slurm": {"job": "7"}}),
    "kube": (KubeTransport, {"kube": {"pod": "p", "namespace": "n", "container": "c"}}),
    "inside": (lambda: InsideTransport(LocalTransport()), {"inside": {"runtime": "podman", "name": "c"}}),
}
PROGRAMS = {"srun": 'exec "$@"', "kubectl": 'exec "$@"', "podman": 'exec "$@"', "squeue": "exit 0", "scancel": "exit 0"}
"""The engines' own, which run what stands behind their options here."""


@dataclass(frozen=True)
class Lie:
    """One run: which host lies, by which seed; its letter says about what: the all-reduce, a job, before the login."""

    seed: str
    liar: str

    @property
    def about(self) -> About:
        """What the lie is about."""
        return LETTERS[self.seed[0]]

    @property
    def script(self) -> str:
        """What stands in the place of the liar's interpreter."""
        return interpreter(self.seed, python=self.python)

    @property
    def python(self) -> str:
        """The interpreter of the honest hosts, and below the liar's: where ranks import torch, a fork that has."""
        return warm.interpreter() if self.seed[0] == "s" else sys.executable


def interpreter(seed: str, made_up: str | Path = "-", python: str = sys.executable) -> str:
    """A program in the place of a host's interpreter."""
    return f'#!/bin/sh\nexec {sys.executable} {LYING_PROBE} {seed} {made_up} {python} "$@"\n'


def lie(number: int, start: int) -> Lie:
    """The run of this number, from a first seed on."""
    letter = TURNS[number % len(TURNS)][0]
    return Lie(f"{letter}{start + number}", random.Random(start + number).choice(NAMES))


def in_process(one: Lie, folder: Path) -> list[str]:
    """What went wrong in a run without the command line; nothing where all held."""
    began, before = time.monotonic(), reset_peak()
    try:
        found = RUNS[one.about](one, folder)
    except Exception:  # noqa: BLE001 - that is what is looked for
        return [traceback.format_exc()]
    grown, took = peak_mib() - before, time.monotonic() - began
    found += [f"{grown} MiB more"] if grown > MOST_MIB else []
    return found + ([f"it took {took:.0f} s"] if took > LONGEST_S else [])


def _check(one: Lie, folder: Path) -> list[str]:
    """``check`` over local probes, as they are or behind an engine's program."""
    draw = random.Random(one.seed)
    engine = "local" if one.about == "smoke" or draw.random() < 0.4 else draw.choice([*ENGINES])
    transport, options = ENGINES[engine]
    program = _program(folder / f"liar-{one.seed}", one.script)
    nodes = [_node(name, program if name == one.liar else one.python, engine == "local", options) for name in NAMES]
    with _engine_programs(folder):
        return _judged(one, nodes, transport, smoke=one.about == "smoke")


def _door(one: Lie, folder: Path) -> list[str]:
    """``check`` where one host is an SSH server that lets nobody in."""
    draw = random.Random(one.seed)
    kind: Literal["auto", "paramiko", "openssh"] = draw.choice(("auto", "paramiko", "openssh"))
    place = Path(tempfile.mkdtemp(dir=folder))
    host_key, own_key = keygen(place / "host"), keygen(place / "id")
    with _hostile_server(draw, host_key) as port:
        known, config = place / "known_hosts", place / "config"
        known.write_text(f"[{LOOPBACK}]:{port} {public(host_key)}\n" if draw.random() < 0.8 else "")
        config.write_text(f"Host *\n  IdentityFile {own_key}\n  UserKnownHostsFile {known}\n  ConnectTimeout 5\n")
        nodes = [_node(name, sys.executable, name != one.liar, {}) for name in NAMES]
        ssh = access(SshOptions(port=port))
        nodes = [node if node.local else node.model_copy(update={"access": ssh}) for node in nodes]
        return _judged(one, nodes, lambda: ChoosingTransport(kind, config), smoke=False)


def _judged(one: Lie, nodes: Iterable[Node], transport: Callable[[], Transport], *, smoke: bool) -> list[str]:
    ranked = tuple(node.model_copy(update={"node_rank": rank}) for rank, node in enumerate(nodes))
    port = random.Random(one.seed).randrange(20000, 30000)
    cluster = Cluster(nodes=ranked, master_addr=LOOPBACK, master_port=port)
    limits = SmokeLimits(deadline_s=10, imports_s=40, budget_s=0.2, max_bytes=4096)
    asked = Judge("check", isolate=smoke).questions
    options = RunOptions(smoke=smoke, smoke_limits=limits, total_s=LONGEST_S / 2, questions=asked)
    with open_run(cluster, transport, options, Silent()) as run:
        snapshot = run.snapshot()
    report = judge(snapshot, "check")
    texts = rendered("check", report)
    Snapshot.model_validate_json(snapshot.model_dump_json(by_alias=True))
    malformed = any("malformed" in text for text in reasons(json.loads(snapshot.model_dump_json(by_alias=True)), one))
    found = faults(one, exit_code(report, "error"), json.loads(texts["json"]), malformed=malformed)
    return [*found, told(snapshot)] if found else []


def _hang(one: Lie, folder: Path) -> list[str]:
    """``hang`` on a made-up job of two ranks a host."""
    nodes = []
    for rank, (name, made_up) in enumerate(zip(NAMES, made_up_job(), strict=True)):
        file = folder / f"{name}.json"
        file.write_text(json.dumps(made_up))
        script = interpreter(one.seed if name == one.liar else "H", file)
        node = _node(name, _program(folder / f"{name}-{one.seed}", script), True, {})
        nodes.append(node.model_copy(update={"node_rank": rank}))
    cluster = Cluster(nodes=tuple(nodes), master_addr=LOOPBACK)
    options = HangOptions(interval_s=0.0, dump=random.Random(one.seed).random() < 0.3, total_s=LONGEST_S / 2)
    seen = take(cluster, LocalTransport(), options, Silent())
    return hang_faults(one, HangSnapshot.model_validate_json(seen.model_dump_json(by_alias=True)))


RUNS: dict[About, Callable[[Lie, Path], list[str]]] = {"facts": _check, "smoke": _check, "hang": _hang, "door": _door}


def _node(name: str, python: str, local: bool, options: dict[str, Any]) -> Node:
    return Node(name=name, address=LOOPBACK, node_rank=0, python=python, nproc_per_node=1, local=local, access=options)


def _program(path: Path, script: str) -> str:
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


@contextmanager
def _engine_programs(folder: Path) -> Iterator[None]:
    """Has them found before the real ones."""
    place = folder / "engines"
    place.mkdir(exist_ok=True)
    for name, script in PROGRAMS.items():
        _program(place / name, f'#!/bin/sh\nwhile [ $# -gt 0 ] && [ "$1" != /bin/sh ]; do shift; done\n{script}\n')
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{place}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextmanager
def _hostile_server(draw: random.Random, host_key: Path) -> Iterator[int]:
    """A server before whose login it ends, in one of many ways."""
    way = draw.choice(("methods", "banner", "version", "endless", "noise", "packets", "silence"))
    text = ("publickey," + draw.choice(PIECES) * 200_000)[: min(draw.choice(LENGTHS), 200_000)]
    if way == "methods":
        serving = doors(host_key, methods=text)
    elif way == "banner":
        serving = doors(host_key, banner=text)
    elif way == "version":
        serving = doors(host_key, version=text.replace("\n", " ")[: draw.choice((100, 240, 1000, 100_000))])
    else:
        begin = draw.choice((b"", b"SSH-", b"SSH-2.0-x\r\n", b"SSH-2.0-", b"HTTP/1.1 400 Bad Request\r\n"))
        pieces = {
            "endless": draw.choice(PIECES).encode(),
            "noise": draw.randbytes(1000),
            "packets": _packet(draw),
            "silence": b"",
        }
        serving = misbehaving(for_ever(begin, pieces[way])[0] if pieces[way] else lambda one: one.sendall(begin))
    with serving as port:
        yield port


def _packet(draw: random.Random) -> bytes:
    """What SSH calls a packet, before any key is agreed on (RFC 4253, section 6)."""
    number = draw.choice((1, 2, 3, 4, 20, 21, 30, 31, 50, 51, 53, 60, 90, 94, draw.randrange(256)))
    text = (draw.choice(PIECES) * draw.choice((1, 5000, 40_000))).encode()
    body = bytes([number]) + draw.choice((b"", struct.pack(">I", 2), draw.randbytes(16)))
    body += struct.pack(">I", len(text)) + text + bytes(draw.choice((0, 4, 64)))
    padding = 8 - (len(body) + 5) % 8 + 8
    length = draw.choice((len(body) + padding + 1, 0, 2**31, 2**32 - 4))
    return struct.pack(">IB", length, padding) + body + bytes(padding)


def made_up_job() -> list[dict[str, Any]]:
    """By host, what it answers of a job of two ranks a host."""
    job = Job(hosts=len(NAMES))
    job.serves_ras = True
    found = []
    for host in job.snapshot.hosts:
        assert host.job is not None
        look = host.looks[0].model_dump(mode="json", by_alias=True)
        flows = {str(row["pid"]): row.pop("flows") for row in look["ranks"]}
        report = {"protocol": 2, "form": "json", "text": '{"nccl_version": "2.28.3"}', "whole": True}
        found.append(
            {
                "ranks": host.job.model_dump(mode="json", by_alias=True),
                "look": {**look, "flows": flows},
                "ras": {"versions": ["2.28.3"], "reports": [report]},
                "dump": [rank.pid for rank in host.job.ranks],
                "starters": [],
                "py_spy": None,
            }
        )
    return found


def through_cli(one: Lie, lab: Lab) -> list[str]:
    """The same by the real command line, from a lab's controller."""
    draw = random.Random(one.seed)
    hosts: list[Any] = []
    for host, made_up in zip(lab.hosts, made_up_job(), strict=True):
        program, file = f"/root/python-{one.seed}", "/root/made-up.json"
        lies, plays = host.name == one.liar, one.about == "hang"
        if lies or plays:
            host.write(file, json.dumps(made_up))
            host.write(program, interpreter(one.seed if lies else "H", file if plays else "-", one.python))
            host.run(["chmod", "755", program])
            hosts.append({"name": host.name, "python": program})
        else:
            hosts.append({"name": host.name, "python": one.python})
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(hosts=hosts, nproc_per_node=1))
    command = {"smoke": draw.choice(("check", "smoke")), "hang": "hang"}.get(
        one.about, draw.choice(("check", "check", "ifname"))
    )
    words = [command, "hosts.yaml", "-o", "json", "--timeout", "100"]
    words += ["--transport", draw.choice(("auto", "paramiko", "openssh"))]
    words += ["--save", "seen.json", "--save-whole"] if command in ("check", "hang") else []
    words += ["--interval", "0.5"] if command == "hang" else []
    words += ["--smoke-timeout", "10"] if one.about == "smoke" else ["--no-smoke"] if command == "check" else []
    call = ["env", f"PYTHONPATH={PROJECT}", str(DOCTOR), *words]
    try:
        done = lab.controller.run([sys.executable, "-c", WATCHED, *call], check=False, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return [f"{command} did not end in {LONGEST_S} s"]
    peak = int(done.stderr.rpartition("@peak ")[2].strip() or 0)
    found = [f"{peak} MiB"] if peak > MOST_MIB else []
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return [*found, f"no report of {command}: {done.stdout[-500:]} {done.stderr[-2000:]}"]
    if done.returncode not in (0, 1, 3) or "error" in report:
        return [*found, f"{command}: exit code {done.returncode}: {done.stderr[-2000:]}"]
    saved = lab.controller.run(["cat", "seen.json"]).stdout if "--save" in words else ""
    return found + _faults_of(command, one, done.returncode, report, saved)


def _faults_of(command: str, one: Lie, code: int, report: dict[str, Any], saved: str) -> list[str]:
    if command == "ifname":
        told = {host["name"]: host["nccl_interface"] for host in report["hosts"]}
        return [f"{name} has no interface" for name in NAMES if name != one.liar and told.get(name) is None]
    if command == "hang":
        return hang_faults(one, HangSnapshot.model_validate_json(saved))
    malformed = bool(saved) and any("malformed" in text for text in reasons(json.loads(saved), one))
    return faults(one, code, report, malformed=malformed)


def rendered(command: str, document: Any) -> dict[str, str]:
    """The document in all forms."""
    return {form: render(command, form, document, for_html(RenderOptions())) for form in FORMS[command]}


def told(snapshot: Snapshot) -> str:
    """What a run that broke saw of the hosts that it lost, and how busy this machine was."""
    lost = [f"{host.name}: {host.failure.detail}" for host in snapshot.hosts if host.failure is not None]
    load = snapshot.load and snapshot.load.controller
    return f"{'; '.join(lost)}; {snapshot.timings}; {load}"


def reasons(snapshot: dict[str, Any], one: Lie) -> list[str]:
    """Why facts of the liar are unknown."""
    told = next(host for host in snapshot["hosts"] if host["node"]["name"] == one.liar)["facts"] or {}
    return [fact["$unknown"] for fact in told.values() if isinstance(fact, dict) and "$unknown" in fact]


def faults(one: Lie, code: int, report: dict[str, Any], *, malformed: bool) -> list[str]:
    """What a report lacks."""
    found = [] if code in (0, 1, 3) else [f"exit code {code}"]
    found += [f"crash: {check}" for check in report["checks"] if check["outcome"] == "crash"]
    reached = {host["name"]: host["reached"] for host in report["hosts"]}
    found += [f"{name} was not judged" for name in NAMES if name != one.liar and not reached.get(name)]
    named = [diagnosis for diagnosis in report["diagnoses"] if diagnosis["hosts"] == [one.liar]]
    unjudged = [check["reason"] for check in report["checks"] if one.liar in (check["reason"] or "")]
    if not reached.get(one.liar) and not named:
        found.append(f"{one.liar} is not named")
    if malformed and code == 0 and not (named or unjudged):
        found.append(f"what {one.liar} said is taken for fine")
    found += [f"a fault of ours: {one['message']}" for one in named if "nccl-doctor itself failed" in one["message"]]
    words = [line for diagnosis in named if diagnosis["name"] == "probe-failed" for line in diagnosis["evidence"]]
    found += [f"no lie was told: {line}" for line in words if f'/{LYING_PROBE.name}"' in line]
    return found


def hang_faults(one: Lie, seen: HangSnapshot) -> list[str]:
    """What the report of a job lacks."""
    report = hang_report(seen)
    rendered("hang", report)
    found = [] if hang_exit_code(report) in (0, 1, 3) else ["an exit code of no report"]
    for host in seen.hosts:
        if host.name != one.liar and (host.failure is not None or host.job is None):
            found.append(f"{host.name} was not looked at: {host.failure}")
        if host.name == one.liar and host.job is None and host.failure is None:
            found.append(f"{host.name} is not named")
        if host.failure is not None and "nccl-doctor itself failed" in host.failure.detail:
            found.append(f"a fault of ours: {host.failure.detail}")
    return found


def main() -> int:
    """Runs them; the exit status is 1 where one did not hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--through-cli", type=int, default=120, help="how many of them by the real command line")
    options.add_argument("--start", type=int, default=0, help="the first seed")
    asked = options.parse_args()
    lies = [lie(number, asked.start) for number in range(asked.runs)]
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Lab.up(3) if asked.through_cli else nullcontext() as lab:
        for number, one in enumerate(lies):
            # a server before the login has no command to be run there
            real = lab is not None and number < asked.through_cli and one.about != "door"
            faulthandler.dump_traceback_later(2 * LONGEST_S, exit=True)
            found = through_cli(one, lab) if real and lab is not None else in_process(one, Path(folder))
            outcomes["held" if not found else "broken"] += 1
            for text in found:
                sys.stdout.write(f"{'cli' if real else 'local'} {one}: {text}\n")
            if number % 10 == 9 or number + 1 == asked.runs:
                sys.stdout.write(f"{number + 1} runs: {dict(outcomes)}\n")
            sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()
    return 1 if outcomes["broken"] else 0


def reset_peak() -> int:
    """Has the peak of this process count from now on (proc(5)); what it is now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib() -> int:
    """The most memory that this process had since its peak was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
