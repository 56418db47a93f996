"""What counts as a look of another host at one that was not reached."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest

from nccl_doctor.collect.mesh import failed_dials
from nccl_doctor.crew.answers import DIAL, Dialled
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.snapshot.access import SshUnreachable, UnreachableFacts
from tests.collect.nodes import node


class Witness:
    """Answers with rows, and keeps what it was asked."""

    def __init__(self, *rows: tuple[int, str, str | None], name: str = "a", local: bool = False) -> None:
        self.node = node(name=name).model_copy(update={"local": local})
        self.targets: list[list[Any]] | None = None
        self.deadline = math.inf
        self._rows = rows

    def ask(self, _contract: object, deadline: float, *, targets: list[list[Any]], timeout_s: float) -> Dialled:
        self.targets, self.deadline = targets, deadline
        failed = [[index, 22, outcome, error, timeout_s] for index, outcome, error in self._rows]
        return DIAL.answer.validate_python({"connected": 0, "failed": failed})


def unreachable(address: str) -> SshUnreachable:
    facts = UnreachableFacts(target="node3", address=address, port=22, user="ann", reason="timed-out")
    return SshUnreachable(detail="gave no answer", facts=facts)


def others(witness: Witness, address: str = "10.0.0.3", left_s: float = 60.0) -> dict[str, str]:
    sessions = cast("list[ProbeSession]", [witness])
    found = failed_dials.ask_reachability_from_peers(
        sessions, {"node3": unreachable(address)}, time.monotonic() + left_s
    )
    return {name: outcome for failure in found.values() for name, outcome in failure.facts.others.items()}


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ("failed", "Name or service not known"),
        ("failed", "EMFILE"),
        ("no-source-address", "EADDRNOTAVAIL"),
        ("timed-out", "SILENT"),
    ],
)
def test_a_witness_that_could_not_look_saw_nothing(outcome: str, error: str) -> None:
    assert others(Witness((0, outcome, error))) == {}


@pytest.mark.parametrize("outcome", ["stranger", "refused", "timed-out", "no-route"])
def test_a_look_counts(outcome: str) -> None:
    assert others(Witness((0, outcome, None))) == {"a": outcome}


def test_this_machine_is_no_witness_of_its_own() -> None:
    assert others(Witness((0, "stranger", None), local=True)) == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "fe80::1%eth0"])
def test_an_address_that_is_another_machine_there_is_not_dialled(address: str) -> None:
    witness = Witness((0, "refused", None))
    assert others(witness, address) == {}
    assert witness.targets is None


def test_a_name_is_dialled_at_the_addresses_that_it_has_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the one that tells most counts."""
    monkeypatch.setattr(
        failed_dials, "look_up", lambda names, _within: (dict.fromkeys(names, ("fd00::3", "10.0.0.3")), ())
    )
    witness = Witness((0, "unreachable", "ENETUNREACH"), (1, "stranger", None))
    assert others(witness, "node3") == {"a": "stranger"}
    assert [address for address, *_ in witness.targets or []] == ["fd00::3", "10.0.0.3"]


def test_nobody_is_asked_who_might_answer_after_the_end() -> None:
    witness = Witness((0, "timed-out", None))
    assert others(witness, left_s=failed_dials.TAKES_S - 1) == {}
    assert witness.targets is None
    until = time.monotonic() + failed_dials.TAKES_S + 5
    assert others(witness, left_s=failed_dials.TAKES_S + 5) == {"a": "timed-out"}
    assert witness.deadline <= until
