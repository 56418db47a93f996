"""Who is silent behind a jump host holds its place there for a while only."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import settings
from nccl_doctor.transport.ssh.failures import SshDestination
from nccl_doctor.transport.ssh.settings import MAX_HANDSHAKES, Places
from tests.patience import LONG_S

TARGET = SshDestination("node1", "10.0.0.1", 22, "root")


def test_nobody_gets_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PLACE_S", LONG_S)
    places = Places()
    with ExitStack() as held:
        for _ in range(MAX_HANDSHAKES):
            held.enter_context(places.place(TARGET, 0.0))
        with pytest.raises(AccessError, match="waiting for its turn"), places.place(TARGET, 0.01):
            pass
    with places.place(TARGET, 0.0):
        pass


def test_dead_hosts_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PLACE_S", 0.05)
    places = Places()
    with ExitStack() as held:
        for _ in range(3 * MAX_HANDSHAKES):
            held.enter_context(places.place(TARGET, LONG_S))
    with ExitStack() as held:  # and each only once
        monkeypatch.setattr(settings, "PLACE_S", LONG_S)
        for _ in range(MAX_HANDSHAKES):
            held.enter_context(places.place(TARGET, LONG_S))
        with pytest.raises(AccessError, match="waiting for its turn"), places.place(TARGET, 0.01):
            pass
