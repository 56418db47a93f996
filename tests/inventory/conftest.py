from __future__ import annotations

from collections.abc import Callable

import pytest

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import files
from nccl_doctor.inventory.build import ThisMachine, build
from nccl_doctor.model.cluster import Cluster

ELSEWHERE = ThisMachine(frozenset(), frozenset())
"""A machine that is in no list."""

Understand = Callable[[str], Cluster]
Refusal = Callable[[str], str]


@pytest.fixture
def understand() -> Understand:
    """From the text of a file named "hosts.yaml" to the cluster."""
    return lambda text: build(files.read(text, "hosts.yaml"), (), ELSEWHERE)


@pytest.fixture
def refusal(understand: Understand) -> Refusal:
    """The message with which a text is refused."""

    def message(text: str) -> str:
        with pytest.raises(DoctorError) as caught:
            understand(text)
        return str(caught.value)

    return message
