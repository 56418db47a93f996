"""A rank of the all-reduce that dies: it is named with its host, whatever stage it had reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.doctor import Run
from tests.cli.injected import inject
from tests.cli.smoking import smoke, soon, with_env
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

STAGES = ("torch", "store", "group", "allreduce", "sizes")
"""Of a rank that is a process of its own (probe/smoke/worker.py), before its last, "done"."""


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    """Two hosts; :func:`smoke` looks that nothing stays on them."""
    with Lab.up(2) as lab:
        yield lab


@pytest.mark.parametrize(("name", "at"), [*(("SIGKILL", at) for at in STAGES), ("SIGSEGV", "sizes")])
def test_a_rank_that_is_killed(two: Lab, name: str, at: str) -> None:
    env = inject(two.host("node2"), name, at)
    assert_killed(smoke(two, hosts=with_env(two, "node2", env)), name)


@pytest.mark.parametrize("at", ["none", "began"])
def test_what_forks_the_ranks_is_killed_before_it_has_imported_torch(two: Lab, at: str) -> None:
    run = smoke(two, hosts=with_env(two, "node2", inject(two.host("node2"), "SIGKILL", at)))
    assert (run.names, run.first["hosts"]) == (["allreduce-failed"], ["node2"])
    assert "the process that starts its ranks was killed by SIGKILL" in run.first["message"]
    assert "see in dmesg" in run.first["fix"]["summary"]


def test_a_segment_of_shared_memory_goes_with_the_rank_that_has_to_be_ended(two: Lab) -> None:
    """As NCCL has one between its making and its peer's attaching; :func:`smoke` looks that it is gone."""
    env = inject(two.host("node2"), "segment", "allreduce")
    run = smoke(two, *soon(), hosts=with_env(two, "node2", env))
    assert (run.names, run.first["hosts"]) == (["allreduce-timeout"], ["node2"])
    assert "was executing act (sitecustomize.py" in run.first["message"]


def test_a_rank_that_is_killed_while_its_launcher_says_nothing(two: Lab) -> None:
    """A launcher on a machine that is too slow for the deadline: what can't be waited for is looked up."""
    env = inject(two.host("node2"), "unheard", "sizes")
    assert_killed(smoke(two, *soon(), hosts=with_env(two, "node2", env)), "SIGKILL")


def assert_killed(run: Run, name: str) -> None:
    assert run.names == ["allreduce-failed"]
    assert run.first["hosts"] == ["node2"]
    assert run.first["facts"]["ranks"] == [1]
    assert f"Rank 1 on node2 was killed by {name}" in run.first["message"]


def test_a_death_after_the_last_result_spoils_nothing(two: Lab) -> None:
    """Its sums are checked and told; torch itself aborts at its exit now and then."""
    run = smoke(two, hosts=with_env(two, "node2", inject(two.host("node2"), "SIGKILL", "done")))
    assert (run.names, run.code, run.report["smoke"]["ok"]) == ([], 0, True)
