"""The kernel's own answer to where a packet goes; in the lab with rules, routes and filters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe.netlink import find_refusal, look_up, way_request
from tests.lab.cluster import Lab


def asked(to: str, source: str | None = None, iif: str | None = None) -> dict[str, Any]:
    [answer] = look_up([{"to": to, "source": source, "iif": iif}])
    return {key: value for key, value in answer.items() if value is not None}


def test_this_machine_reaches_itself() -> None:
    local = asked("127.0.0.1")
    assert local.pop("table") in (254, 255)  # one and the same until somebody adds a rule
    assert local == {"to": "127.0.0.1", "dev": "lo", "prefers": "127.0.0.1"}
    assert asked("127.0.0.1", "127.0.0.1", "no-such0")["error"]


@pytest.mark.parametrize("family", ["10.1.2.3", "fd00::1"])
def test_a_request_is_as_long_as_it_says(family: str) -> None:
    message = way_request(7, family, family, "lo")
    assert int.from_bytes(message[:4], "little") == len(message)


@pytest.mark.lab
def test_a_gateway_of_the_other_family(fresh_lab: Lab) -> None:
    """As with BGP unnumbered (RFC 5549)."""
    host = fresh_lab.host("node1")
    host.run("ip route add 10.9.0.0/16 via inet6 fe80::1 dev eth0")
    script = (
        "from nccl_doctor.probe.netlink import look_up; "
        "print(look_up([{'to': '10.9.0.1', 'source': None, 'iif': None}])[0]['gateway'])"
    )
    done = host.run([sys.executable, "-c", script], env={"PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.stdout == "fe80::1\n"


MAIN, OTHER = 254, 77
UNICAST, UNREACHABLE = 1, 7
NET, HOST = (bytes((10, 1, 2)), 24), (bytes((10, 1, 2, 3)), 32)


@pytest.mark.parametrize(
    ("routes", "destination"),
    [
        ([(MAIN, *NET, 0, UNICAST), (MAIN, *HOST, 0, UNREACHABLE)], "10.1.2.3/32"),
        ([(MAIN, b"", 0, 0, UNREACHABLE)], "0.0.0.0/0"),
        ([(MAIN, *NET, 0, UNREACHABLE), (MAIN, *HOST, 0, UNICAST)], None),  # a narrower one leads there
        ([(MAIN, *NET, 9, UNREACHABLE), (MAIN, *NET, 0, UNICAST)], None),  # so does one of a lesser metric
        ([(MAIN, *NET, 0, UNREACHABLE), (OTHER, *NET, 0, UNREACHABLE)], None),  # either may be it
        ([(MAIN, bytes((10, 1, 3)), 24, 0, UNREACHABLE)], None),
    ],
)
def test_the_route_that_refuses(routes: list[tuple[int, bytes, int, int, int]], destination: str | None) -> None:
    found = find_refusal(routes, "10.1.2.3", "EHOSTUNREACH")
    assert (found and found["destination"]) == destination
    assert find_refusal(routes, "10.1.2.3", "EACCES") is None
