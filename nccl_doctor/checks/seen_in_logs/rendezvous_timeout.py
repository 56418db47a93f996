"""Ranks waited for the master or for each other until the timeout.

What it means: Not all ranks joined the rendezvous, because a host did not start its ranks, can't reach the master, or
has a different master address, port or world size.

How we know: torch prints "The client socket has timed out after 60s while trying to connect to (10.0.0.2, 29500)" or
"Timed out after 601 seconds waiting for clients". Other signs are a store-based barrier that counts fewer workers than
the world size, RendezvousTimeoutError, RendezvousConnectionError, and errors from JAX's coordination service. If the
timeout concerns a key that another rank should have set ("retrieving ncclUniqueId from [0]", or a key such as rank_3),
the store can be reached, but that rank did not get to its first operation in the process group.

Fix: Start the job on all hosts within the timeout, with the same --rdzv-endpoint, or with the same --master_addr and
--master_port. `nccl-doctor launch` prints the launch command of each host, and `nccl-doctor check` tests the port from
every host.

References: torch/csrc/distributed/c10d/socket.cpp and TCPStore.cpp; torch/distributed/elastic/rendezvous.
"""

import re

from nccl_doctor.checks.seen_in_logs.collective_timeout import likely_hang
from nccl_doctor.logs.log import Event, LoggedAddress, rank_progress
from nccl_doctor.logs.rule import MEETING, RAS_STARTING, STARTED, Grade, clue, generic, hint, likelies, likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import fold

from_logs(__name__, "NCD902")


def _advice(case: Case) -> Advice:
    if all(event.wording == STARTED for event in case.cause.events):
        return _begun(case)
    if _LOOPBACK.fullmatch(case.address.ip or case.address.host or ""):
        return advise(
            f"{case.who} waited for the master at {case.target} until the timeout. That is a loopback address, at "
            "which each host reaches only itself.",
            "With several hosts, give all of them the first host's address on the job's network (MASTER_ADDR, "
            "--master-addr, --rdzv-endpoint or the script's own --dist-url); nccl-doctor launch prints the commands. "
            "With a single host, the output of rank 0 shows why it did not listen.",
        )
    awaited = next((match for event in case.cause.events if (match := _KEY.search(event.text))), None)
    if awaited is not None:
        number = awaited["id"] or awaited["address"] or "0"
        act = "publish its address" if awaited["address"] else "create the NCCL communicator"
        return advise(
            f"{case.who} waited in vain for rank {number} of its process group to {act}.",
            f"The store can be reached, but rank {number} did not get to its first operation in that group. See "
            "whether it started and what it did meanwhile (its log, an exception, data loading, py-spy dump).",
            case.check(),
        )
    place = f" at {case.target}" if case.address != LoggedAddress() else ""
    return advise(
        f"{case.who} waited for the master{place} or for other ranks until the timeout.",
        "Not all ranks arrived: a host did not start, the master address, port or --rdzv-id differs, or a firewall "
        "is in the way. Test the hosts:",
        case.check(),
    )


def _begun(case: Case) -> Advice:
    """Return the advice for a log that ends without a timeout while ranks are initializing NCCL."""
    facts, where = case.log.facts, rank_progress(case.log.facts)
    place = f" on {fold(facts.hosts)}" if facts.hosts else ""
    whole = not where.missing and facts.world_size is not None
    message = f"The log ends while NCCL initializes{place}: {where.phrase()}."
    if whole:
        message = (
            f"All {facts.world_size} ranks{place} began to initialize NCCL, but none completed it before the log ends."
        )
    if not whole or len(facts.hosts) != 1:
        return advise(message, "If the job hangs at this point, test the hosts' interfaces and ports:", case.check())
    lacking = [value for topic, value, _ in facts.chosen if topic == "iommu"]
    first = (
        f"RCCL warns that {lacking[0]} is missing from the kernel's command line, without which transfers between GPUs "
        "can hang: add it and reboot. "
        if lacking
        else ""
    )
    return advise(
        message,
        f"{first}If the job hangs at this point, run it once with NCCL_P2P_DISABLE=1, as a test, not a cure. If it "
        "goes on then, P2P between these GPUs is broken (PCIe ACS or the IOMMU; nvidia-smi topo -p2p r). To see where "
        "the ranks hang:",
        case.check(command="hang"),
        command="hang",
    )


_CALLED = r'c10d_rendezvous_backend\.py", line \d+, in _call_store'
"""Pattern for the stack frame of a call to a store to which torch is already connected."""
_LOST = re.compile(r"RendezvousConnectionError|connection to the [Cc]10d store")
_STACK = 60
"""Maximum number of lines from a ``_CALLED`` frame to the exception's last line (46 with torch 2.13)."""

_KEY = re.compile(
    r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<id>\d{1,7})\]"
    r"|wait timeout after \d+ ?ms, keys: /\S{0,300}(?:/rank_(?P<address>\d{1,7})\b|/cuda//\d)"
)
"""Pattern for a key that another rank did not set: NCCL's unique ID, or the address of a gloo rank."""

_LOOPBACK = re.compile(r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}|::1|localhost(?:\.localdomain)?")

RULES = (
    likely(
        r"client socket has (?:timed out after|failed to connect to any network address of)",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.2, "
        "29500).",
    ),
    hint(
        r"TCP client failed to connect/validate to host .*retrying",
        "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - retrying (try=3, "
        "timeout=9ms)",
    ),
    *likelies(
        r"TCP client failed to connect/validate to host .*timed out",
        "[E TCPStore.cpp:329] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - timed out "
        "(try=3, timeout=9ms)",
        r"connect\(\) timed out\. Original timeout",
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        r"(?:Did not receive (?:response|ready|init) .{0,40}(?:front-end|engine|worker)"
        r"|[Tt]imed out waiting for (?:engine|worker|placement group|front-end)|startup handshake)",
        "RuntimeError: Did not receive response from front-end process within 5 minutes",
        r"Timed out after \d+ seconds waiting for clients",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
        r"Timed out (?:initializing process group in store based barrier|waiting for .* to join)",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=4, timeout=0:30:00)",
    ),
    hint(
        r"Waiting in store based barrier to initialize process group for rank: (?P<rank>\d+)",
        "Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=4, timeout=0:30:00)",
    ),
    likely(
        r"(?:wait timeout after \d+ ?ms, keys|Timeout waiting for key|[Tt]imeout waiting for (?:ncclUniqueId"
        r"|NCCL unique))",
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/rank_3",
        unless=r"torchelastic/agent/terminal_state",
    ),
    likely(r"(?:RuntimeError|DistStoreError|StoreTimeout|LastError): Socket Timeout", "RuntimeError: Socket Timeout"),
    likely(
        r"Rendezvous(?:Timeout|Connection)(?:Error|Exception)",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        unless=r"keep-alive heartbeat|to shutdown the rendezvous",
    ),
    clue(
        _CALLED, '  File "/v/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 114, in _call_store'
    ),
    likely(
        r"(?:connection to the [Cc]10d store (?:has )?failed|[Rr]endezvous (?:has )?(?:timed out|failed))",
        "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
    ),
    likely(
        r"is setting up NCCL communicator and retrieving ncclUniqueId .*(?:got error|timed out)",
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: Socket Timeout",
        unless=r"got error: .{0,60}(?:got 0 bytes|Connection reset|Broken pipe|[Cc]onnection was (?:likely )?closed)",
    ),
    *likelies(
        r"(?:DEADLINE_EXCEEDED|Deadline Exceeded).*(?:[Bb]arrier|coordinat|[Cc]onnect|RegisterTask|[Tt]imed out)",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect::0",
        r"(?:UNAVAILABLE|UNKNOWN): .*(?:failed to connect to (?:all|remote)|[Cc]oordination service)",
        "XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: ipv4:10.0.0.2:8476",
        r"[Tt]imed out waiting for (?:tasks|other|all|peers|nodes|workers|hosts)\b.*(?:start|join|connect|ready|rank"
        r"|node|worker)",
        "Timed out waiting for tasks to start. Please check connectivity between servers.",
    ),
    generic(
        r"Rendezvous(?:Closed|GracefulExit)Error", "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    ),
    clue(
        STARTED,
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x9 - Init START",
        unless=r"nranks 1 ",
    ),
    clue(MEETING, '  File "/v/torch/distributed/distributed_c10d.py", line 1148, in init_process_group'),
    hint(
        r"(?i:initializing) (?:distributed|ddp|deepspeed distributed): GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/\d+",
        "initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8",
    ),
)


def _joined_before(scene: Scene) -> list[Event]:
    """Attribute the loss of an established store connection to the exit of the launcher on the master."""
    calls = [event for event in scene.events if event.wording == _CALLED]

    def was_called(event: Event) -> object:
        near = (call for call in calls if call.file == event.file and 0 < event.line - call.line <= _STACK)
        return event.name == "rendezvous-timeout" and _LOST.search(event.text) and any(near)

    return scene.renamed("peer-died", Grade.SYMPTOM, was_called)


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.ECHO, Role.RETRIED, Role.UNFINISHED}),
    ras={RAS_STARTING: Grade.SYMPTOM},
    severity=likely_hang,
    passes={PassStage.MEANING: _joined_before},
)
