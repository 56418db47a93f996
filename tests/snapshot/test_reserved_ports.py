"""A port more in ip_local_reserved_ports, as the kernel writes the list back."""

from __future__ import annotations

import pytest

from nccl_doctor.snapshot.network import PortRange


@pytest.mark.parametrize(
    ("reserved", "port", "text"),
    [
        ("", 29500, "29500"),
        ("30000-30010", 29500, "29500,30000-30010"),
        ("8080,29501-29510", 29500, "8080,29500-29510"),
        ("29400-29499,29501", 29500, "29400-29501"),
        ("29500", 29500, "29500"),
    ],
)
def test_a_port_joins_the_list_in_its_order(reserved: str, port: int, text: str) -> None:
    assert PortRange.model_validate({"low": 20000, "high": 60999, "reserved": reserved}).reserving(port) == text
