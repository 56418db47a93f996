"""RDMA over InfiniBand or RoCE failed.

What it means: A queue pair could not be created, or a transfer was not acknowledged. Possible causes are a faulty link,
a wrong GID index, VLAN, MTU or flow control setting, and the exit of the process on the other host.

How we know: NCCL prints a "Got completion from peer" message with a status, such as status=12. Status 12 means that no
acknowledgement arrived. Status 4 means that the adapter has no permission to access the local memory. Status 10 means
that the memory on the other host is no longer accessible, usually because the process there has exited. Status 5 is
only a consequence of an earlier error. In the message "Call to ibv_modify_qp failed", errno 61 means that the GID at
the chosen index is empty. Errno 22 means that this GID does not exist, or that only one of the two GIDs contains an
IPv4 address. If the message ends with "next state INIT", errno 22 means that the partition key index (NCCL_IB_PKEY) is
wrong. Errno 110, 113 or 101 from ibv_modify_qp means that the other device can't be reached, usually because it is in
another network (rdma-pair-unreachable). From NCCL 2.24 on, the message about ibv_modify_qp names the device, the GID
index and both GIDs. NCCL's warnings about asynchronous InfiniBand events show links that went down. If `nccl-doctor
logs --with FILE` reads a snapshot from `nccl-doctor check --save`, the diagnosis names the two ports of the failed
connection and states whether these ports can communicate.

Fix: Run ib_write_bw between the two hosts, and check the link with ibstat or ethtool. For RoCE, unset NCCL_IB_GID_INDEX
if the NCCL version is 2.21 or later. With an earlier NCCL version, set NCCL_IB_GID_INDEX to the index of the correct
GID. Restrict NCCL_IB_HCA to adapters of one kind.

References: NCCL's src/transport/net_ib.cc; infiniband/verbs.h (ibv_wc_status).
"""

import re

from nccl_doctor.logs.prefix import number
from nccl_doctor.logs.rule import hint, root, roots, symptom
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD910", explains=("cuda-error", "gdr-p2p-fault"))

_STATUS = re.compile(r"(?:error |status=)(?:\w+\()?(\d+)")
_EMPTY_GID = re.compile(r"(?i:gids?) ?[=:]? ?(?:::|0000:0000:0000:0000:0000:0000:0000:0000)(?:[ ,)]|$)")
_STATUSES = {
    4: "status 4, since the adapter may not read the local memory, mostly GPU memory (GPUDirect, ACS)",
    5: "status 5, which only means that the connection had failed before",
    9: "status 9, since the other side refused the request",
    10: "status 10, since the other side's memory was gone, mostly because its process had ended",
    11: "status 11, since the other side failed",
    12: "status 12 (no acknowledgement), so the link, GID index, VLAN, MTU or PFC is wrong, or the other side is gone",
    13: "status 13, since the other side was never ready to receive",
}
"""Meanings of ibv_wc_status values (infiniband/verbs.h)."""
_NOBODY = "no answer from the peer's GID, since the two devices share no network or a switch drops packets"
_ERRORS = {
    110: f"{_NOBODY} (110)",
    113: f"{_NOBODY} (113)",
    101: "no route leads from this device's interface to the other one's GID (101)",
    61: "the GID at that index is empty on one side (61)",
    22: "the GID at that index does not exist, or only one of the two GIDs contains an IPv4 address (22)",
    19: "the device or its interface is gone (19)",
}
"""Meanings of the errno values with which ibv_modify_qp fails. Versions of NCCL before 2.19 print only the error
message, not the errno.
"""
_NO_PKEY = "the port has no partition key at the index NCCL_IB_PKEY (22)"
"""Meaning of errno 22 from the transition to INIT, which uses no GID."""
_SAYS = {
    "not found in PKey table": "no partition key of the port is NCCL_IB_PKEY_VALUE's; ask the subnet manager's owner, "
    "or unset it",
    "RTR failed": "the port is still down, or its GID is not registered yet",
    "WQE stall": "what was posted is not done: the peer, its link or a switch does not answer",
}
"""Meanings of phrases in messages of NCCL 2.31 and later."""
_ERRNO = re.compile(r"ibv_modify_qp failed with (?:error .*errno )?(\d+)")
_WORDS = {"Connection timed out": 110, "No route to host": 113, "Network is unreachable": 101, "No data available": 61}
_WORDS |= {"Invalid argument": 22, "No such device": 19}
_GID_INDEX = re.compile(r"local GID index (\d{1,3})")
_GIDS = re.compile(r"(?i:(local|remote) ?gids?) ?=?(?:::ffff:(?=[0-9]+[.]))?([0-9a-fA-F.:]{2,45})")


def _advice(case: Case) -> Advice:
    statuses = [number(digits) for event in case.cause.events for digits in _STATUS.findall(event.text)]
    reason = next((_STATUSES[status] for status in statuses if status is not None and status in _STATUSES), None)
    texts = [event.text for event in case.cause.events]
    qp = next((text for text in texts if "ibv_modify_qp" in text), None)
    if qp is not None:
        number_of = _ERRNO.search(qp)
        error = number(number_of[1]) if number_of else next((n for words, n in _WORDS.items() if words in qp), None)
        reason = _NO_PKEY if error == 22 and "next state INIT" in qp else _ERRORS.get(error or 0, reason)
    details = _ends(texts)
    device = f"{case.device} ({details})" if case.device and details else case.device
    place = (f" over {device}" if device else "") + (f" to {case.target}" if case.address.ip else "")
    reason = next((words for sign, words in _SAYS.items() if any(sign in text for text in texts)), reason)
    if any(_EMPTY_GID.search(event.text) for event in case.cause.events):
        reason = "the GID of one side is empty, so its index (NCCL_IB_GID_INDEX) names no address of that port"
    return advise(
        f"RDMA{place} failed on {case.who}" + (f": {reason}." if reason else "."),
        "nccl-doctor ifname shows which devices NCCL pairs. Test the pair with ib_write_bw and check the link "
        "(ibstat, ethtool). On RoCE, unset NCCL_IB_GID_INDEX from NCCL 2.21 on; set it before 2.21. NCCL_IB_DISABLE=1 "
        "shows whether everything else works.",
        case.check(),
    )


def _ends(texts: list[str]) -> str:
    """Describe the GID index and the GIDs that the log lines contain."""
    index = next((match[1] for text in texts if (match := _GID_INDEX.search(text))), None)
    gids: dict[str, str] = {}
    for side, gid in (pair for text in texts for pair in _GIDS.findall(text)):
        gids.setdefault(side, gid.rstrip(".:") or gid)
    parts = [f"GID index {index}"] if index else []
    parts += [gids["local"]] if "local" in gids else []
    return ", ".join(parts) + (f" to {gids['remote']}" if "remote" in gids else "")


RULES = (
    symptom(
        r"Got completion .*(?:with error 5,|status=5 |status=IBV_WC_WR_FLUSH_ERR)",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 5, "
        "opcode 1, len 0, vendor err 249",
    ),
    root(
        r"Got completion (?:from peer )?.*(?:with (?:error|status)|status ?=)",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, "
        "opcode 1, len 0, vendor err 129",
    ),
    root(
        r"NET/IB.*(?:async (?:fatal|error) event|Got async (?:error )?event|Got CQE with error|marked as failed"
        r"|error is fatal)",
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    ),
    *roots(
        r"NET/IB.*NCCL_IB_PKEY_VALUE=\S+ not found in PKey table",
        "n1:1:2 [0] transport/net_ib/init.cc:300 NCCL WARN NET/IB: NCCL_IB_PKEY_VALUE=0x8001 not found in PKey table",
        r"NET/IB.*RTR failed \(\d+\) for QP",
        "n1:1:2 [0] transport/net_ib/p2p.cc:300 NCCL WARN NET/IB: mlx5_0: RTR failed (110) for QP devIndex=0 qp_num=77 "
        "localGidIndex=3 (port still down or GID not yet registered)",
        r"NET/IB: WQE stall \(no CQE\): peer=(?P<ip>[0-9.]+)?",
        "n1:1:2 [0] transport/net_ib/p2p.cc:300 NCCL WARN NET/IB: WQE stall (no CQE): peer=10.0.0.7<41000> | "
        "local: qpn=7 dev=mlx5_0 port=1",
    ),
    hint(
        r"NET/IB.*(?:GID table changed on|GID refreshed: idx)",
        "n1:1:2 [0] NCCL INFO NET/IB: ncclIbEventGidChange: GID table changed on mlx5_0:1",
    ),
    hint(
        r"NET/IB.*(?:GID table changed|non-fatal async event)",
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 GID table changed",
    ),
    root(  # after a WARN, or alone if torch quotes NCCL's last error
        r"(?:Call to ibv_\w+(?:\(\))? (?:failed|returned)|ibv_post_(?:send|recv)\(\) failed)",
        "n1:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        unless=r"NCCL INFO ",
    ),
    *roots(
        r"[Ff]ailed to modify QP (?:state )?to (?:INIT|RTR|RTS)\b",
        "Failed to modify QP to RTR: Connection timed out",
        r"WARN .*(?:incompatible devices|device is incompatible with|different link_layer|different number of devices"
        r"|mlx5dv_\w+ failed)",
        "n1:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Attempted to connect incompatible devices: "
        "[0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE.",
        r"WARN .*NET/IB.*[Uu]nable to (?:open|query|allocate)",
        "n1:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Unable to open device mlx5_0",
        r"(?i:transport retry count(?:er)? exceeded|RNR retry|failed to create (?:a )?queue pair"
        r"|[Ll]ocal QP operation err)",
        "ib_mlx5_log.c:171 Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
        r"WARN .*Detected mixed local (?:Net|CollNet) device counts",
        "n1:1:2 [0] init.cc:1200 NCCL WARN Detected mixed local Net device counts across ranks (min 4, max 8). Set "
        "NCCL_IGNORE_NET_MISMATCH=1 to continue.",
    ),
)

SIGNS = LogSigns(RULES, _advice, interface=Case.adapter, after=("memlock-low",))
