"""What a host's kernel says of what it sends us; rows as Linux 6.1 wrote them."""

from __future__ import annotations

import pytest

from nccl_doctor.transport.ssh.paramiko_transport import is_resent

ROW = "   3: {local} {remote} {state} {queued}:00000000 {timer}:00000124 {times}     0        0 4711 3 0 1 2 31 1 7"
FOUR = {"local": "02004D0A:0016", "remote": "FE004D0A:D431"}
MAPPED = {side: "0000000000000000FFFF0000" + end for side, end in FOUR.items()}
SIX = {"local": "0000000000000000FFFF0000:0016", "remote": "B80D0120000000000000000001000000:D431"}


def row(change: dict[str, str]) -> str:
    usual = {**FOUR, "state": "01", "queued": "00001F40", "timer": "01", "times": "00000004"}
    return ROW.format(**{**usual, **change})


@pytest.mark.parametrize(
    ("change", "address", "vain"),
    [
        ({}, "10.77.0.254", True),
        (MAPPED, "10.77.0.254", True),
        (SIX, "2001:db8::1", True),
        ({"state": "08"}, "10.77.0.254", True),  # we have said that no more comes from us
        ({}, "10.77.0.253", False),
        ({"remote": "FE004D0A:D432"}, "10.77.0.254", False),
        ({"queued": "00000000"}, "10.77.0.254", False),  # slow: it has sent nothing
        ({"times": "00000002"}, "10.77.0.254", False),  # as losses do
        ({"timer": "04"}, "10.77.0.254", False),  # it waits for our window
        ({"timer": "02", "times": "00000000"}, "10.77.0.254", False),
        ({"state": "06"}, "10.77.0.254", False),
        ({"local": "Last login: from"}, "10.77.0.254", False),
    ],
)
def test_what_is_sent_in_vain(change: dict[str, str], address: str, vain: bool) -> None:
    assert is_resent(row(change), address, 0xD431) is vain
