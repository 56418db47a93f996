"""A path that swallows large packets, built of three network namespaces; and healthy ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nccl_doctor.probe.mesh.mesh import try_all
from tests.patience import LONG_S

ROUTER = r"""
set -e
unshare -n sleep 30 & left=$!
unshare -n sleep 30 & right=$!
trap 'kill $left $right' EXIT
until [ "$(readlink /proc/$left/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
until [ "$(readlink /proc/$right/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip -batch - <<END
link add name near mtu 9000 type veth peer name eth0 mtu 9000 netns $left
link add name far mtu $MTU type veth peer name eth0 mtu 9000 netns $right
link set near up
link set far up
addr add 10.1.0.254/24 dev near
addr add 10.2.0.254/24 dev far
END
echo 1 > /proc/sys/net/ipv4/ip_forward
[ -z "$MUTE" ] || iptables -A OUTPUT -p icmp -j DROP
for side in "$left 10.1.0" "$right 10.2.0"; do
    set -- $side
    nsenter -t $1 -n ip -batch - <<END
link set lo up
link set eth0 up
addr add $2.1/24 dev eth0
route add default via $2.254
END
done
nsenter -t $right -n "$PYTHON" -c "$LISTENER" | {
    read ready
    nsenter -t $left -n "$PYTHON" -c "import json
from nccl_doctor.probe.mesh.mesh import try_all
print(json.dumps(try_all([('10.2.0.1', 5000)], 1.5)[0]))"
    kill $left $right
}
"""


LISTENER = """
import socket, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
accepted = server.accept()
while True:  # until nobody listens to us any more
    print("still there", flush=True)
    time.sleep(0.05)
"""


def through_router(mtu: int, *, mute: bool) -> dict[str, object]:
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LISTENER": LISTENER,
        "MTU": str(mtu),
        "MUTE": "1" if mute else "",
        "PYTHON": sys.executable,
    }
    command = ["unshare", "-n", "-p", "-f", "--mount-proc", "--kill-child", "bash", "-c", ROUTER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=LONG_S)
    assert done.stdout, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.lab
def test_a_router_that_keeps_silent_about_a_narrow_link_is_a_black_hole() -> None:
    result = through_router(1500, mute=True)
    assert result["outcome"] == "stalled"
    assert result["unacked"] == result["sent"]


@pytest.mark.lab
def test_a_router_that_tells_of_it_is_none() -> None:
    assert through_router(1500, mute=False)["outcome"] == "passed"


@pytest.mark.lab
def test_jumbo_frames_end_to_end_pass() -> None:
    assert through_router(9000, mute=True)["outcome"] == "passed"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_listener_need_not_read(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    results = try_all([("127.0.0.1", port)] * 3, 2.0)
    assert [result["outcome"] for result in results] == ["passed"] * 3
    assert {result["unacked"] for result in results} == {0}


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (result,) = try_all([("127.0.0.1", port)], 1.0)
    assert result["outcome"] == "not-connected"
    assert "refused" in result["error"]
    assert try_all([], 1.0) == []
