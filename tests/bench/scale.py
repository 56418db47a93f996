"""1,024 and 4,096 hosts through connecting, facts, mesh, judging, report and JSON: ``scripts/bench scale [HOSTS…]``.

A real probe on this machine is asked once. A transport replays its answers for every host, each after the time that it
took then, with the host's own name, address, rack and routes; connecting, typing, judging and reporting are ours.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nccl_doctor.cli.main import GARBAGE
from nccl_doctor.cli.progress import Silent
from nccl_doctor.collect.facts import host_facts
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import open_run
from nccl_doctor.crew import answers
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.register import all_checks
from nccl_doctor.probe.facts.network import unpacked
from nccl_doctor.report.render import render
from nccl_doctor.snapshot.redact import redact
from nccl_doctor.transport.process import LocalTransport

SIZES = (1024, 4096)
RACK = 64
"""Hosts of one net, with a router to the others."""

MOST_S = 0.5
"""Of a recorded delay: this machine may be busy."""

DEADLINE_S = 60.0
LIMITS = {"judging": 5.0, "snapshot": 8192.0, "memory": 1024.0, "growth": 1.1, "screen": 40.0}
"""Seconds; bytes a host; MiB; processor time a host at the largest size by that at the smallest; lines."""


def cluster(count: int) -> Cluster:
    """Hosts that are known by name."""
    nodes = tuple(Node(name=f"node{rank:04d}", address=f"node{rank:04d}", node_rank=rank) for rank in range(count))
    return Cluster(nodes=nodes, master_addr=nodes[0].name)


def address(rank: int) -> str:
    """Of a host in its rack's net."""
    rack, place = divmod(rank, RACK)
    return f"10.{rack // 256}.{rack % 256}.{place + 2}"


@dataclass(frozen=True)
class Recorded:
    """What the probe answered, and how long each answer took, in seconds."""

    hello: dict[str, Any]
    facts: dict[str, Any]
    delays: dict[str, float]


def record() -> Recorded:
    """Asks a probe on this machine."""
    delays: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = work()
        delays[what] = min(time.monotonic() - began, MOST_S)
        return result

    node = cluster(1).nodes[0].model_copy(update={"python": sys.executable})
    open_ = timed(
        "open", lambda: ProbeSession.open(LocalTransport(), node, time.monotonic() + DEADLINE_S, 4 * DEADLINE_S)
    )
    asking = host_facts.Asking(cluster(1), host_facts.FactLimits(), float("inf"))
    told: list[dict[str, Any]] = []
    ask = open_.ask

    def kept(contract: Any, deadline: float, **arguments: Any) -> Any:
        answer = ask(contract, deadline, **arguments)
        told.append(copy.deepcopy(answer))
        return answer

    open_.ask = kept
    with contextlib.suppress(answers.NoAnswerError):  # a fact that this machine is too busy for
        timed("facts", lambda: asking(open_, 1.0))
    open_.ask = ask
    listener = [{"address": "127.0.0.1", "port": 0, "step": 0, "tries": 1}]
    until = time.monotonic() + DEADLINE_S
    nonce = {"nonce": "n", "sockets": listener}
    ports = timed("listen", lambda: open_.ask(answers.LISTEN, until, **nonce)).ports
    targets = {"targets": [["127.0.0.1", list(ports), "n"]], "timeout_s": 5.0}
    timed("dial", lambda: open_.ask(answers.DIAL, until, **targets))
    open_.close()
    return Recorded(open_.hello.model_dump(mode="json"), told[0], delays)


class Replay:
    """A transport that plays the record for every host."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def open(self, node: Node, command: str, *_bounds: float) -> ReplayChannel:
        """A host that answers after a while."""
        (mark,) = re.findall("print[(]'([0-9a-f]+)'", command)
        return ReplayChannel(self.recorded, node, mark[::-1].encode())

    def connect_timeout(self, node: Node) -> None:
        """As without any configuration."""

    def close(self) -> None:
        """Nothing is shared."""


class ReplayChannel:
    """One host: what is written to it, and when its answers come."""

    def __init__(self, recorded: Recorded, node: Node, nonce: bytes) -> None:
        self._recorded, self._node, self._nonce = recorded, node, nonce
        self._due: list[tuple[float, bytes]] = []
        self._answer("open", {})

    def send(self, data: bytes, _deadline: float) -> None:
        """Takes a request; the first is the probe itself, and its header the second."""
        if not data.startswith(b"{"):
            return
        request = json.loads(data)
        if "do" not in request:
            self._answer("hello", {"hello": self._recorded.hello})
            return
        do = request["do"]
        self._answer(do, {"id": request["id"], "ok": getattr(self, f"_{do}")(request)})

    def read_line(self, deadline: float) -> bytes | None:
        """The next answer, once it is due."""
        if not self._due or self._due[0][0] > deadline:
            raise TimeoutError
        due, line = self._due.pop(0)
        time.sleep(max(0.0, due - time.monotonic()))
        return line

    def pulse(self) -> None:
        """It needs none."""

    def stderr_tail(self) -> str:
        """Nothing."""
        return ""

    def exit_status(self, _deadline: float) -> int | None:
        """It never ends by itself."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self, what: str, message: dict[str, Any]) -> None:
        due = time.monotonic() + self._recorded.delays.get(what, 0.0)
        self._due.append((due, self._nonce + b" " + json.dumps(message).encode()))

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        rank = self._node.node_rank
        own, gateway = address(rank), address(rank - rank % RACK).rpartition(".")[0] + ".1"
        net = gateway.rpartition(".")[0] + ".0/24"
        link = {"index": 2, "flags": ["up", "running", "broadcast"], "mtu": 9000, "speed_mbps": 100000}
        route = {"family": "inet", "interface": "eth0", "metric": 0}
        entry = {"interface": "eth0", "family": "inet", "address": own, "netmask": "255.255.255.0", "scope_id": 0}
        master = {"port": request["master_port"], "free": True}
        return self._recorded.facts | {
            "identity": self._recorded.facts["identity"] | {"hostname": self._node.name, "boot_id": f"boot-{rank}"},
            "interfaces": {"links": [{"name": "eth0", "kind": "physical", **link}], "addresses": [entry]},
            "routes": [
                {"destination": net, "gateway": None, **route},
                {"destination": "0.0.0.0/0", "gateway": gateway, **route},
            ],
            "libnccl": _libnccl(self._recorded.facts["libnccl"], own),
            "resolution": {"own": _unknown_names(request["names"], own), "source": own},
            "processes": [],
            "gpu_processes": [],
            "sockets": [],
            "master_port": master if request["trial_port"] else {"$skipped": "only the master's port is tried"},
        }

    def _clock(self, _request: dict[str, Any]) -> float:
        return time.time()

    def _listen(self, request: dict[str, Any]) -> dict[str, Any]:
        ports: list[int] = []
        for wanted in request["sockets"]:
            port = wanted["port"]
            while port in ports:  # as a real host steps aside from a port that it holds
                port += wanted["step"]
            ports.append(port)
        return {"ports": ports, "errors": {}}

    def _dial(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"connected": sum(len(ports) for _, ports, _ in request["targets"]), "failed": []}

    def _path_mtu(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        passed = {"outcome": "passed", "sent": 32768, "unacked": 0, "segment": 8948, "error": None}
        return [passed for _ in request["targets"]]

    def _turn(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {"holder": None, "trial": None}

    def _end_turn(self, _request: dict[str, Any]) -> None:
        return None

    def _unlisten(self, _request: dict[str, Any]) -> None:
        return None


@lru_cache(2)
def _unanswered(names: str) -> list[str]:
    return [name for name, known in unpacked(names).items() if known is None]


def _unknown_names(names: str, source: str) -> dict[str, Any]:
    """What a host tells: the names that nobody has answered yet."""
    return {
        name: {"addresses": [address(int(name[4:]))], "error": None, "source": source, "source_error": None}
        for name in _unanswered(names)
    }


def _libnccl(told: Any, own: str) -> Any:
    """Its answer with the host's interface; what was not asked, or not in time, stays so."""
    return told | {"interface": "eth0", "address": own} if told and "address" in told else told


def run(count: int) -> dict[str, float]:
    """The figures of one size; in a process of its own, for the memory."""
    gc.set_threshold(*GARBAGE)
    all_checks()
    recorded = record()
    began = time.process_time()
    options = RunOptions(smoke=False, total_s=3600.0)
    with open_run(cluster(count), lambda: Replay(recorded), options, Silent()) as done:
        snapshot = done.snapshot()
    figures = {f"{phase} s": seconds for phase, seconds in snapshot.timings.items()}
    figures["CPU ms a host"] = (time.process_time() - began) * 1000 / count
    began = time.process_time()
    report = judge(snapshot, "check")
    figures["judging"] = time.process_time() - began
    began = time.process_time()
    figures["JSON bytes a host"] = len(render("check", "json", report)) / count
    figures["screen"] = render("check", "human", report).count("\n")
    figures["reporting s"] = time.process_time() - began
    began = time.process_time()
    figures["snapshot"] = len(redact(snapshot)[0].model_dump_json(by_alias=True, indent=1)) / count
    figures["saving s"] = time.process_time() - began
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures["errors"] = sum(diagnosis.severity == "error" for diagnosis in report.diagnoses)
    figures["unreached"] = sum(not host.reached for host in report.hosts)
    return figures


def main() -> None:
    """Prints a line a size, and what is beyond its limit; the exit status says whether anything is."""
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    if len(sizes) == 1:
        print(json.dumps(run(sizes[0])))
        return
    rows = {}
    for count in sizes:
        told = subprocess.run(
            [sys.executable, "-m", "tests.bench.scale", str(count)], stdout=subprocess.PIPE, check=True
        )
        rows[count] = json.loads(told.stdout)
        print(f"{count:5} hosts: {', '.join(f'{name} {value:.4g}' for name, value in rows[count].items())}", flush=True)
    least, most = rows[min(rows)], rows[max(rows)]
    seen = {**{what: most[what] for what in LIMITS if what != "growth"}}
    seen["growth"] = most["CPU ms a host"] / least["CPU ms a host"]
    for what, limit in LIMITS.items():
        print(f"{what} {seen[what]:.4g} (at most {limit:g})")
    if any(seen[what] > limit for what, limit in LIMITS.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
