"""A few of the runs that ``python -m tests.lab.liar`` makes by the hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import local_user, port_liar
from tests.lab.cluster import Lab, MakeLab
from tests.lab.liar import MOST_MIB, Lie, in_process, through_cli

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "seed", ["f30001", "f30002", "f30003", "f30005", "s30016", "h30003", "h30011", "d30005", "d30013"]
)
def test_a_host_that_lies_to_local_probes(seed: str, tmp_path: Path) -> None:
    assert in_process(Lie(seed, "node2"), tmp_path) == []


@pytest.mark.lab
@pytest.mark.parametrize("seed", ["f20001", "f20007", "s20008", "h20003"])
def test_a_host_that_lies_to_the_command_line(seed: str, fresh_lab: Lab) -> None:
    assert through_cli(Lie(seed, "node3"), fresh_lab) == [], f"at most {MOST_MIB} MiB"


@pytest.mark.lab
def test_a_host_that_lies_to_fix_port(fresh_lab: Lab) -> None:
    found = {number: port_liar.through_cli(port_liar.lie(number), fresh_lab) for number in (0, 2, 5, 8)}
    assert [*filter(None, found.values())] == [], found


@pytest.mark.lab
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_local_user_accuses_nobody_and_has_nothing_run(seed: int, make_lab: MakeLab) -> None:
    assert local_user.run(make_lab(3), seed) == []
