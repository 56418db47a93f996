"""What the checks of NCCL's choice advise."""

from __future__ import annotations

from nccl_doctor.judge.diagnose import judge
from tests.checks.snapshots import patched


def test_ipv6_asked_for_without_ipv6_is_not_mended_by_another_interface() -> None:
    env = {"NCCL_SOCKET_FAMILY": "AF_INET6"}
    seen = patched({"hosts": {name: {"node": {"env": env}} for name in ("node1", "node2", "node3")}})
    [found] = [each for each in judge(seen, "check").diagnoses if each.name == "ifname-no-match"]
    assert found.message.startswith(
        'With NCCL_SOCKET_FAMILY="AF_INET6" (hosts file), NCCL on node[1-3] finds no usable interface'
    )
    assert found.fix.summary.startswith(
        "NCCL_SOCKET_FAMILY asks for an address family that no interface of these hosts has"
    )
