"""Where ``fix-port`` asks: this machine in our own process, or a host through a probe's session."""

from __future__ import annotations

import time
from typing import Any, Protocol

from nccl_doctor.probe import port_requests
from nccl_doctor.text import own_limits


class Machine(Protocol):
    """One host that answers the probe's requests."""

    @property
    def name(self) -> str:
        """What the user calls it; "" for this machine."""

    def ask(self, do: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request.

        Raises:
            NotReachedError: none came.
        """

    def close(self) -> None:
        """Leaves the host as it was."""


class ThisMachine:
    """This machine: the probe's own functions, without a second interpreter."""

    name = ""

    def __init__(self) -> None:
        own_limits.require_linux("this machine")

    def ask(self, do: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request."""
        return port_requests.HANDLERS[do](arguments)

    def close(self) -> None:
        """Nothing is open."""


def sleep(seconds: float) -> None:
    """Waits; apart, so that tests need not."""
    time.sleep(seconds)
