"""NCCL's network plugin failed.

What it means: An NCCL plugin, such as aws-ofi-nccl, FasTrak, UCX or SHARP, could not be loaded, found no device, or
lost a connection. NCCL might continue over sockets, which are many times slower.

How we know: The log contains warnings that begin with "NET/OFI" or another plugin's name, "Failed to initialize any NET
plugin", or "network … not found". If NCCL only prints that no plugin was found, nothing is wrong.

Fix: Check that the RDMA devices are available in the container (/dev/infiniband). On AWS, check that `fi_info -p efa`
lists the EFA devices. Check that the instances' security group allows traffic between its members, and that the plugin
is compatible with the NCCL version.

References: NCCL's src/plugin/net.cc; aws-ofi-nccl.
"""

import re

from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, hint, likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Scene, advise
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import listed

_VARIABLE = re.compile(r"mismatch (?:enforced|recommended): ([A-Z][A-Z0-9_]{2,80}=\S{0,80}) (\(expected .{1,80}?\))")

from_logs(__name__, "NCD912", explains=("cuda-error", "ib-fault"))


def _advice(case: Case) -> Advice:
    wrong = dict.fromkeys(" ".join(m.groups()) for e in case.cause.events if (m := _VARIABLE.search(e.text)))
    if wrong:
        return advise(
            f"The NCCL network plugin's own check requires other variable values on {case.who}: "
            f"{listed([*wrong][:4])}.",
            "On every host alike, set them as the plugin's script does (nccl-env-profile.sh of TCPXO, set_nccl_env.sh "
            "of gIB; source it last, and override none of its values), from the same release as the plugin.",
            case.check(),
        )
    return advise(
        f"NCCL's network plugin failed on {case.who}.",
        "Check whether its devices exist (fi_info -p efa, /dev/infiniband in the container), whether the security "
        "group lets the hosts reach each other, and whether its version supports this NCCL version. NCCL_NET=Socket "
        "shows whether everything else works.",
        case.check(),
    )


_SHIM = r"NCCL/NET \(shim\) mismatch "
"""Message of GKE's shim for the TCPXO and gIB plugins. The shim compares NCCL's variables with tested values."""
_RECOMMENDED = _SHIM + r"recommended: "

RULES = (
    root(
        _SHIM + r"enforced: ",
        "gpu-0:1:1 [0] NCCL WARN NCCL/NET (shim) mismatch enforced: NCCL_FASTRAK_NUM_FLOWS=4 (expected 2)",
    ),
    hint(
        _RECOMMENDED,
        "gpu-0:1:1 [0] NCCL WARN NCCL/NET (shim) mismatch recommended: NCCL_BUFFSIZE=4194304 (expected 8388608)",
    ),
    hint(
        r"INFO NET/Plugin ?: ?(?:Could not find: |Plugin load \(|No plugin found \(|Failed to (?:load|open) )\S",
        "n1:1:2 [0] NCCL INFO NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so. Using internal plugin.",
        unless=r"(?:find: |\(|load |open )(?:\S*/)?(?:lib[nr]ccl-net\.so|none)",
    ),
    likely(
        r"\bOFI (?:call|plugin|fi_\w+).{0,60}(?:fail|error)|[Nn]o OFI NICs? found"
        r"|nccl_net_ofi_\w+.{0,60}(?:fail|error)",
        "gpu-03: [1] WARN: OFI call failed with RC -22, Invalid argument",
    ),
    likely(
        r"(?:tcpx|TCPX|fastrak|FASTRAK)\w*\(.*NCCL WARN ",
        "[0] tcpxResult_t tcpxCommProgress(tcpxComm*):1231 NCCL WARN 0xad:0xae, nic 0, rx ctrl timeout",
    ),
    root(
        r"NET/OFI .*(?:completed with error|Unresponsive receiver|fi_\w+(?:\(\))? (?:call )?failed|RC: -?\d+)",
        "n1:1:2 [0] ofi_process_cq:1077 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 "
        "(Unresponsive receiver)",
    ),
    likely(r"WARN NET/OFI ", "n1:1:2 [0] nccl_net_ofi_init:1444 NCCL WARN NET/OFI aws-ofi-nccl initialization failed"),
    likely(
        r"SHARP coll init error|Cannot create SHARP job|sharp_coll_init failed",
        "n1:1:2 [0] sharp_plugin.c:352 NCCL WARN NET/IB :SHARP coll init error: Cannot create SHARP job(-11)",
    ),
    root(
        r"(?:Failed to initialize any NET plugin|Error ?: network .* not found)",
        "n1:1:2 [0] init.cc:700 NCCL WARN Error: network AWS Libfabric not found.",
    ),
    likely(
        r"WARN .*NET/(?:FasTrak|FASTRAK|gIB|GIB|TCPX|GPUDirectTCPX|UCX|AWS|Libfabric|MLX5|SHARP|DLINFER|HPC)\b",
        "n1:1:2 [0] x.cc:1 NCCL WARN NET/FasTrak plugin: failed to connect to the receive manager",
    ),
    root(
        r"(?:libnccl-net|libnccl_net|librccl-net|aws-ofi-nccl)\S*.{0,60}(?:undefined symbol|version .* not found"
        r"|[Ss]egmentation)",
        "/opt/amazon/lib/libnccl-net.so: undefined symbol: fi_getinfo",
    ),
    likely(
        r"(?:libfabric|EFA|efa).{0,80}(?:fi_\w+ failed|Unresponsive receiver|provider .* (?:error|failed)"
        r"|[Uu]nreachable remote)",
        "libfabric:77:1:efa:cq:efa_rdm: Libfabric EFA provider has encountered an internal error: Unresponsive "
        "receiver",
    ),
)


def _weigh(event: Event, scene: Scene) -> Grade:
    """Grade a missing plugin higher if NCCL used sockets, and a plugin's advice higher if NCCL failed."""
    if event.wording == _RECOMMENDED:
        return Grade.LIKELY if "nccl-unknown-error" in scene.names else Grade.HINT
    sockets = any(process.network == "Socket" for process in scene.log.facts.processes.values())
    return Grade.LIKELY if sockets else Grade.HINT


SIGNS = LogSigns(RULES, _advice, weigh=_weigh, warning_up_to=Grade.LIKELY)
