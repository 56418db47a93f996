"""Made-up jobs: 8 ranks on 4 hosts that all wait in one all-reduce, and what differs from that."""

from __future__ import annotations

from typing import Any

from nccl_doctor.snapshot.hang import HangSnapshot

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
GRAPH = "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py"
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
TRAIN = "/home/alice/train.py"
PORT = 29500
UNREACHED = {
    "kind": "ssh-unreachable",
    "detail": "gave no answer in 10 s",
    "evidence": [],
    "facts": {"target": "node4", "address": "10.0.0.4", "user": "root", "port": 22, "reason": "timed-out"},
}


def frames(*named: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"function": function, "file": file, "line": line} for function, file, line in named]


def in_all_reduce(line: int = 212) -> list[dict[str, Any]]:
    return frames(("all_reduce", C10D, 3252), ("wrapper", C10D, 83), ("step", TRAIN, line), ("<module>", TRAIN, 300))


def at(line: int, function: str = "step") -> list[dict[str, Any]]:
    return frames((function, TRAIN, line), ("<module>", TRAIN, 300))


IN_LOADER = frames(
    ("_try_get_data", LOADER, 1250),
    ("_next_data", LOADER, 1400),
    ("_BaseDataLoaderIter.__next__", LOADER, 700),
    ("epoch", "/home/alice/dataset.py", 88),
    ("<module>", TRAIN, 300),
)
IN_BACKWARD = frames(("_engine_run_backward", GRAPH, 829), ("step", TRAIN, 99), ("<module>", TRAIN, 300))


def flow(local: str, port: int, remote: str, to: int, **change: Any) -> dict[str, Any]:
    return {
        "local": [local, port],
        "remote": [remote, to],
        "state": "ESTABLISHED",
        "unread": 0,
        "unsent": 0,
        "retransmits": 0,
        "probes": 0,
        "acked": 1000,
        "received": 1000,
        **change,
    }


def call(group: str, seq: int, name: str = "all_reduce", sizes: str = "[[4]]", *, done: bool = False) -> dict[str, Any]:
    return {"group": group, "seq": seq, "name": name, "sizes": sizes, "done": done}


def recorder(*calls: dict[str, Any], live: bool = True) -> dict[str, Any]:
    groups = {one["group"] for one in calls}
    return {
        "live": live,
        "issued": {group: max(one["seq"] for one in calls if one["group"] == group) for group in groups},
        "ended": {
            group: max((one["seq"] for one in calls if one["group"] == group and one["done"]), default=0)
            for group in groups
        },
        "calls": list(calls),
    }


class Job:
    """A job as two looks show it; change it, then take :attr:`snapshot`."""

    def __init__(self, hosts: int = 4, nproc: int = 2, looks: int = 2) -> None:
        self.world, self.nproc, self.count = hosts * nproc, nproc, looks
        self.hosts = [f"node{number + 1}" for number in range(hosts)]
        self.present = set(range(self.world))
        self.failed: dict[str, dict[str, Any]] = {}
        self.ras: dict[str, list[Any]] = {}
        self.misnumbered_ranks: dict[str, list[dict[str, Any]]] = {}
        self.rivals: dict[str, list[dict[str, Any]]] = {}
        self.told: dict[int, dict[str, Any]] = {}
        self.nccl: str | None = None
        self.serves_ras = False
        self.launchers: list[dict[str, Any]] = []
        self.launched_by: list[int] = []  # PIDs of launchers on the first host, whether or not a rank is left
        self.killed: list[dict[str, Any]] = []
        self.gpus: list[dict[str, Any]] = []
        self.looks: list[dict[int, dict[str, Any]]] = [
            {
                rank: {"pid": self.pid(rank), "state": idle(), "stack": _stack(rank, in_all_reduce()), "flows": []}
                for rank in range(self.world)
            }
            for _ in range(looks)
        ]

    def pid(self, rank: int) -> int:
        return 1000 + rank

    def stands(self, rank: int, where: list[dict[str, Any]] | None, *, look: int | None = None) -> Job:
        """The rank stands there, at one look or at all; None for a stack that could not be had."""
        for number in range(self.count) if look is None else (look,):
            stack = {"$unknown": "py-spy: Permission denied"} if where is None else _stack(rank, where)
            self.looks[number][rank]["stack"] = stack
        return self

    def state(self, rank: int, *, look: int | None = None, **change: Any) -> Job:
        for number in range(self.count) if look is None else (look,):
            self.looks[number][rank]["state"].update(change)
        return self

    def gone_at_the_last_look(self, rank: int) -> Job:
        self.looks[-1][rank] = {"pid": self.pid(rank), "state": None}
        return self

    def works(self, rank: int) -> Job:
        """It had the CPU all the time between the looks."""
        return self.state(rank, look=self.count - 1, wanted_s={"1": 9.8}, cpu_s=9.8)

    def linked(self, one: int, other: int, *, moved: int = 0, **change: Any) -> Job:
        """A connection between two ranks; ``change`` is of the first one's end, at both looks."""
        for number, look in enumerate(self.looks):
            ends = (f"10.0.0.{one + 1}", 40000 + one, f"10.0.0.{other + 1}", 40000 + other)
            moved_now = 1000 + moved * number
            look[one]["flows"].append(flow(*ends, **{"acked": moved_now, **change}))
            look[other]["flows"].append(flow(ends[2], ends[3], ends[0], ends[1], received=moved_now))
        return self

    def recorded(self, rank: int, *calls: dict[str, Any], live: bool = True, look: int | None = None) -> Job:
        for number in range(self.count) if look is None else (look,):
            self.looks[number][rank]["recorder"] = recorder(*calls, live=live)
        return self

    @property
    def snapshot(self) -> HangSnapshot:
        return HangSnapshot.model_validate(
            {
                "schema": 1,
                "version": "0.1.0",
                "taken_at": "2026-01-01T00:00:00+00:00",
                "interval_s": 5,
                "stacks": "read",
                "cluster": {"nodes": [self._node(n) for n in range(len(self.hosts))], "master_addr": "node1"},
                "hosts": [self._host(number, name) for number, name in enumerate(self.hosts)],
                "timings": {"total": 6.2},
            }
        )

    def _node(self, number: int) -> dict[str, Any]:
        return {"name": self.hosts[number], "address": f"10.0.0.{number + 1}", "node_rank": number}

    def _host(self, number: int, name: str) -> dict[str, Any]:
        if name in self.failed:
            return {"node": self._node(number), "failure": self.failed[name]}
        ranks = [rank for rank in range(number * self.nproc, (number + 1) * self.nproc) if rank in self.present]
        looks = [
            {
                "at_s": 100.0 + 5 * order,
                "ranks": [look[rank] for rank in ranks],
                "launchers": self.launchers if number == 1 else [],
                "serves_ras": self.serves_ras,
                "killed": self.killed,
                "xids": [],
                "gpus": self.gpus,
            }
            for order, look in enumerate(self.looks)
        ]
        return {
            "node": self._node(number),
            "job": {
                "ranks": [{**self.row(rank), **self.told.get(rank, {})} for rank in ranks],
                "launchers": self._launchers(ranks) if number == 0 and ranks else [],
                "starters": self._starters() if number == 0 and not ranks else [],
                "hidden": 0,
                "py_spy": True,
                "machine": "x86_64",
            },
            "misnumbered_ranks": self.misnumbered_ranks.get(name, []),
            "rivals": self.rivals.get(name, []),
            "looks": looks,
            "ras": self.ras.get(name, []),
        }

    def _launchers(self, ranks: list[int]) -> list[dict[str, Any]]:
        below = [self.pid(rank) for rank in ranks]
        rest = {"state": "S", "program": "torchrun", "children": below, "defunct": []}
        return [{"pid": pid, **rest} for pid in self.launched_by]

    def _starters(self) -> list[dict[str, Any]]:
        rest = {"state": idle(), "program": "torchrun", "age_s": 600.0, "asked": {}, "dials": []}
        return [{"pid": pid, **rest} for pid in self.launched_by]

    def row(self, rank: int) -> dict[str, Any]:
        """What its process tells."""
        return {
            "rank": rank,
            "world_size": self.world,
            "local_rank": rank % self.nproc,
            "local_world_size": self.nproc,
            "master_addr": "node1",
            "master_port": PORT,
            "pid": self.pid(rank),
            "inner_pid": self.pid(rank),
            "started": 1,
            "age_s": 600.0,
            "user": "alice",
            "uid": 1000,
            "command": "python train.py --token hf_abcdefghijklmnop",
            "unit": None,
            "nccl": self.nccl,
            "told": {},
        }


def _stack(rank: int, where: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"tid": 1000 + rank, "name": "MainThread", "frames": where}]


def idle() -> dict[str, Any]:
    return {
        "state": "S",
        "wchan": "futex_do_wait",
        "kernel_stack": [],
        "cpu_s": 5.0,
        "wanted_s": {"1": 5.0, "2": 1.0},
        "switches": 100,
        "io_bytes": 10_000,
        "threads": 20,
        "workers": [],
    }
