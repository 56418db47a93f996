"""Launchers of torch's that have no rank yet: how they were started, and with whom they are connected.

torchrun starts its ranks when as many nodes have met as it was told; until then it prints nothing.
"""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping, Sequence

from nccl_doctor.probe import guard, programs, rank_state
from nccl_doctor.probe.hang import flows
from nccl_doctor.probe.procs import Table

LAUNCHERS = frozenset(
    {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate-launch"}
    | {"accelerate.commands.launch", "accelerate.commands.accelerate_cli"}
)
OPTIONS = {
    "nnodes": ("nnodes", "num_machines"),
    "node_rank": ("node_rank", "machine_rank"),
    "master_addr": ("master_addr", "main_process_ip"),
    "master_port": ("master_port", "main_process_port"),
    "rdzv_backend": ("rdzv_backend",),
    "rdzv_endpoint": ("rdzv_endpoint",),
    "rdzv_id": ("rdzv_id",),
}
"""What a node is told of the others, by torchrun's name: torchrun's option and accelerate's."""
MOST = 64
TEXT = 200


def find(table: Table) -> list[dict[str, Any]]:
    """snapshot.Starter of each that is ours to look at.

    Raises:
        OSError: the kernel does not tell of connections.
    """
    some = [pid for pid in sorted(table.procs) if _starts(pid, table)][:MOST]
    if not some:
        return []
    connections = flows.by_rank(some)
    return [
        {
            "pid": pid,
            "program": programs.program(table.argv(pid)),
            "age_s": guard.age_s(pid, table),
            "state": rank_state.look(pid, table.procs[pid].started, table),
            "asked": asked(table.argv(pid), table.environ(pid)),
            "dials": [[*flow["remote"], flow["state"]] for flow in connections[pid]][:MOST],
        }
        for pid in some
    ]


def asked(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What a launcher was told, by options or by torchrun's variables (PET_NNODES, torch's argparse_util.py)."""
    given = dict(reversed(list(_options(argv))))
    found = {}
    for name, options in OPTIONS.items():
        value = next((given[one] for one in options if one in given), environ.get(f"PET_{name.upper()}"))
        if value:
            found[name] = value[:TEXT]
    return found


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option and its value, in their order: the script's own come behind the launcher's."""
    for word, after in zip(argv, [*argv[1:], ""]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name.replace("-", "_"), value if equals else after


def _starts(pid: int, table: Table) -> bool:
    """Whether it is such a launcher of ours, and below it runs no rank of any language, nor what it was put into."""
    if table.procs[pid].state == "Z" or os.getuid() not in (0, table.uid(pid)):
        return False
    if programs.program(table.argv(pid)) not in LAUNCHERS:
        return False
    below = table.descendants(pid)
    return not any(programs.is_python(table.executable(one)) or "LOCAL_RANK" in table.environ(one) for one in below)
