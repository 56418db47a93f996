"""NCCL uses an interface that the other hosts do not reach.

What it means: NCCL took a loopback, container, bridge or link-local interface, or one on another net than the other
hosts' interfaces, and told its peers that address.

How we know: The interface stands in "Bootstrap : Using docker0:172.17.0.1<0>" or "NET/Socket : Using …". It counts as
a fault when connections to such an address fail, or when several hosts use one.

Fix: Set NCCL_SOCKET_IFNAME to the right name on every host, with = in front for an exact match. A list that begins
with ^ excludes what it names and nothing else: `^docker0` lets lo in. `nccl-doctor ifname` says what NCCL chooses and
why.

References: NCCL's src/misc/socket.cc (ncclFindInterfaces).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD901", explains=("hostname-loopback", "no-route-to-host"))
