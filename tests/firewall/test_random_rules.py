"""Random rule sets on one or both of two hosts: judged whole, and the printed commands pasted."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.base import known
from tests.firewall import generate
from tests.firewall.differential import QUICK_S, RESET, RETRANSMITTED_S
from tests.firewall.scene import ADDRESSES, PORTS, Scene

pytestmark = [pytest.mark.lab, pytest.mark.slow]

RULES = ("firewall-blocks-port", "firewall-blocks-ephemeral")
STRANGERS = [("10.9.0.11", ADDRESSES["node1"], port) for port in (22, *PORTS["node1"])]
"""From an address that is none of the cluster's."""
SOURCES = 64
"""Dials that tell a shut port from one that opens to some source ports only."""
AT_ONCE = 4
SEEDS = 200
PARTS = 4


@dataclass(frozen=True)
class Trial:
    """A rule set, judged and mended.

    Attributes:
        cut: dials of the mesh failed.
        names: of the diagnoses of the ports.
        left: dials that fail after all commands were pasted.
        let_in: a stranger's ports that were shut before and are open then.
    """

    seed: int
    cut: bool
    names: frozenset[str]
    left: tuple[str, ...]
    let_in: tuple[int, ...]
    commands: tuple[str, ...]

    @property
    def right(self) -> bool:
        """What is cut is explained by rules alone and mended; what is whole is let alone."""
        blamed = bool(self.names)
        return blamed == self.cut and self.names <= set(RULES) and not self.left and not self.let_in


@pytest.mark.parametrize("part", range(PARTS))
def test_what_random_rules_cut_is_named_and_mended(part: int) -> None:
    with ExitStack() as stack:
        scenes: queue.SimpleQueue[Scene] = queue.SimpleQueue()
        for _ in range(AT_ONCE):
            scenes.put(stack.enter_context(Scene()))

        def work(seed: int) -> Trial:
            scene = scenes.get()
            try:
                return play(scene, seed)
            finally:
                scenes.put(scene)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            trials = list(pool.map(work, range(part, SEEDS, PARTS)))
    assert [trial for trial in trials if not trial.right] == []
    assert sum(trial.cut for trial in trials) > len(trials) / 4
    assert sum(len(trial.commands) > 1 for trial in trials) > 1


def play(scene: Scene, seed: int) -> Trial:
    """node2's rules are away while the stranger, who lives there, is tried: they are none that keep it out."""
    case = generate.case(seed)
    node1, node2 = scene.boxes["node1"], scene.boxes["node2"]
    node2.sh(RESET)
    node1.sh(RESET + case.b)
    before = [node2.dial(STRANGERS, QUICK_S) for _ in range(2)]
    node2.sh(case.a)
    snapshot = scene.judge().snapshot
    found = [each for each in judge(snapshot, command="check").diagnoses if each.code.startswith("NCD30")]
    commands = tuple((each.host or "", each.command) for one in found for each in one.fix.commands)
    for host, command in commands:
        scene.boxes[host].sh(command)
    left = scene.failed() if commands else []
    let_in: tuple[int, ...] = ()
    if commands:
        node2.sh(RESET)
        shut = [flow for flow, *ends in zip(STRANGERS, *before, strict=True) if "connected" not in ends]
        # more than once, for the kernel may know a connection of an earlier rule set by the same ports
        tries = [node2.dial(shut, QUICK_S) for _ in range(4)]
        opened = [flow for flow, *ends in zip(shut, *tries, strict=True) if set(ends) == {"connected"}]
        if opened:  # what ever opens without the commands was never shut: a dial was late, or a rule looks at its port
            node1.sh(RESET + case.b)
            ends = node2.dial(opened * SOURCES, RETRANSMITTED_S)
            never = {flow for flow, end in zip(opened * SOURCES, ends, strict=True) if end == "connected"}
            let_in = tuple(flow[2] for flow in opened if flow not in never)
    return Trial(
        seed,
        cut=bool(known(snapshot.mesh).failed),
        names=frozenset(each.name for each in found),
        left=tuple(f"{dial['src']} -> {dial['port']}: {dial['outcome']}" for dial in left),
        let_in=let_in,
        commands=tuple(command for _, command in commands),
    )
