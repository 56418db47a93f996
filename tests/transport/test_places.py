"""Who is silent behind a jump host holds its place there for a while only."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from nccl_doctor.transport.ssh import settings
from nccl_doctor.transport.ssh.settings import MAX_HANDSHAKES, Places
from tests.patience import LONG_S


def test_nobody_gets_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PLACE_S", LONG_S)
    places = Places()
    with ExitStack() as held:
        assert all(held.enter_context(places.place(0.0)) for _ in range(MAX_HANDSHAKES))
        with places.place(0.01) as one_more:
            assert not one_more
    with places.place(0.0) as after:
        assert after


def test_dead_hosts_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PLACE_S", 0.05)
    places = Places()
    with ExitStack() as held:
        assert all(held.enter_context(places.place(LONG_S)) for _ in range(3 * MAX_HANDSHAKES))
    with ExitStack() as held:  # and each only once
        monkeypatch.setattr(settings, "PLACE_S", LONG_S)
        assert all(held.enter_context(places.place(LONG_S)) for _ in range(MAX_HANDSHAKES))
        with places.place(0.01) as one_more:
            assert not one_more
