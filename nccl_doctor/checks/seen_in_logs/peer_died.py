"""A rank exited, and the other ranks lost their connections to it.

What it means: A lost connection is only a consequence of the exit of another rank. To find the cause, look for the
first error of the rank that exited. The log of the rank that exited might be on another host or in another file. If the
kernel killed the rank, no log of the job shows an error.

How we know: The log contains NCCL's "Connection closed by remote peer", "Connection reset by peer" or ncclRemoteError,
torch's "TCPStore server has shut down too early", or gloo's "Connection closed by peer". No other fault in the log
explains the lost connections.

Fix: Pass the logs of all ranks to `nccl-doctor logs`. Check dmesg and the scheduler's records for the host that the
diagnosis names.

References: NCCL's src/misc/socket.cc (socketProgress); torch/csrc/distributed/c10d/TCPStore.cpp.
"""

import re

from nccl_doctor.logs import rule
from nccl_doctor.logs.log import Event, Reading, rank_progress
from nccl_doctor.logs.rule import Grade, clue, failed_connects, generic, hint, symptom, symptoms
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import capital, ranks_of

from_logs(__name__, "NCD905", errors=("ECONNRESET", "EPIPE"))


def _advice(case: Case) -> Advice:
    if case.first.wording in (rule.RAS_LINE, rule.RECORDED):
        return advise(
            f"{capital(case.first.message)}.",
            "See on that host whether the process still exists (ps, dmesg, the scheduler's records), and whether it is "
            "stopped or stuck. To see whether the host can be reached:",
            case.check(),
        )
    of_launcher = any(_OF_LAUNCHER.search(event.text) for event in case.cause.events)
    if of_launcher and all(event.rank is None for event in case.cause.events):
        place = case.target if case.address.ip or case.address.host else "the master"
        return advise(
            f"A launcher lost the connection to the job's store on {place}. The launcher there has probably exited; "
            "this log does not show why.",
            "See on the master (the host of --rdzv-endpoint) whether it was restarted or its launcher was killed "
            "(dmesg, the scheduler's records), and give its log to nccl-doctor logs, too.",
            case.check(),
        )
    missing = rank_progress(case.log.facts).missing
    hint = f" NCCL's lines do not name {ranks_of(missing)}." if missing else ""
    return advise(
        f"{case.who} lost the connection to a rank that had exited; this log does not show why it exited.{hint}",
        'Look for the first error, "Killed" or a kernel message (dmesg) on the other hosts, and pass all '
        "ranks' logs "
        "to nccl-doctor logs together.",
        case.check(),
    )


_EXIT_BARRIER = r"torchelastic/agent/terminal_state"
"""Store key at which torchrun waits for the other launchers after its workers have ended."""
_OF_LAUNCHER = re.compile(r"RendezvousConnectionError|connection to the C10d store has failed")

RULES = (
    hint(
        _EXIT_BARRIER,
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: "
        "/torch.rendezvous.x.0/torchelastic/agent/terminal_state/last_member",
    ),
    hint(
        r"failed to shutdown the rendezvous",
        "W1128 10:04:52 22853 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1298] The node 'n1_2_0' "
        "has failed to shutdown the rendezvous 'x' due to an error of type RendezvousConnectionError.",
    ),
    clue(rule.RAS_LINE, "  Rank 7 -- GPU 3 managed by process 3748990 on node 10.1.2.3"),
    *failed_connects(Grade.SYMPTOM, r"(?:Connection reset by peer|Broken pipe)", "Connection reset by peer"),
    *symptoms(
        r"Connection closed by remote peer",
        "n1:1:2 [0] include/socket.h:416 NCCL WARN Net : Connection closed by remote peer",
        r"WARN .*Call to (?:recv|send|write|read)\S* .*failed ?: ",
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Net : Call to recv from 10.0.0.2<4242> failed : Connection reset by "
        "peer",
        r"WARN .*(?:Proxy Call to rank \d+ failed|Socket recv failed while polling|Proxy thread error"
        r"|Could not receive type from localRank)",
        "n1:1:2 [0] proxy.cc:1119 NCCL WARN Socket recv failed while polling for opId=0x7f12",
        r"(?:Connection closed by peer|(?:Read|Write|recv|send) (?:error"
        r"|timeout)) \[(?P<ip>[0-9a-fA-F.:]+)\]:(?P<port>\d+)",
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:31337",
        r"gloo/transport/tcp/.*(?:Connection reset by peer|Broken pipe|Socket closed|Connection closed)",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Socket closed",
        r"(?:recv|send)(?:Bytes|Value|String|Vector)? ?(?:failed|error).*(?:Broken pipe|Connection reset|got 0 bytes)",
        "[W113 04:10:22 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=83, addr=[a]:4, remote=[b]:5): "
        "Broken pipe",
        r"(?:failed to recv, got 0 bytes|TCPStore server has shut down too early|[Cc]onnection was (?:closed"
        r"|likely closed))",
        "RuntimeError: failed to recv, got 0 bytes",
    ),
    symptom(
        r"(?:\[Errno 104\]|\[Errno 32\])", "ConnectionResetError: [Errno 104] Connection reset by peer", unless=rule.WEB
    ),
    *symptoms(
        r"(?:RuntimeError|DistNetworkError|DistBackendError): (?:.*: )?(?:Connection reset by peer|Broken pipe)",
        "RuntimeError: Connection reset by peer",
        r"(?:NCCL communicator was aborted(?:\.| on |$)|HorovodInternalError|Horovod has been shut down|ActorDiedError|"
        r"[Aa]ctor (?:died|is dead)|WorkerCrashedError|has been marked dead|[Ww]orker (?:died|unexpectedly exited)"
        r"|failed to send a keep-alive heartbeat|tasks are unhealthy|stopped sending heartbeats"
        r"|indicates that another task died)",
        "RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: x",
        r"successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank \d",
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    ),
    generic(
        r"(?:remote process exited or there was a network error|ncclRemoteError|EngineDeadError)",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, remote process exited or "
        "there was a network error, NCCL version 2.27.3",
    ),
    symptom(
        r"(?:lost connection to the (?:remote )?daemon|remote daemon .* (?:lost|failed)|[Nn]ode .*(?:has )?failed(?:,"
        r"|:| and)|task \d+ .* launch failed)",
        "An ORTE daemon has unexpectedly failed after launch: it lost connection to the remote daemon",
    ),
)

_STACK = 80
"""Maximum number of lines from the head of a traceback to the exception that ended the process."""


def _is_shutdown_noise(event: Event, reading: Reading, world: int | None, *, others_well: bool) -> bool:
    """Return whether a process lost its connection to the store only after all work was done."""
    if not _of_the_store(event):
        return False
    if others_well or 0 < reading.well < event.line:
        return True
    ranks = {0, event.rank} if event.rank is not None else {rank for rank, _ in reading.torn}
    ends = [(rank, line) for (rank, size), line in reading.torn.items() if rank in ranks and size == world]
    return any((rank == 0 or line < event.line) and not _in_trouble(reading, line) for rank, line in ends)


def _of_the_store(event: Event) -> bool:
    return event.name == "peer-died" and "TCPStore" in event.text


def _in_trouble(reading: Reading, line: int) -> bool:
    """Return whether the log shows a fault before the line about an aborted communicator."""
    failed = any(item.grade > Grade.HINT and item.line < line and not _of_the_store(item) for item in reading.events)
    return failed or any(0 < line - item <= _STACK for item in reading.tracebacks)


def _without_shutdown_noise(scene: Scene) -> list[Event]:
    well = {reading.name for reading in scene.log.readings if reading.well}
    world = scene.log.facts.world_size

    def is_noise(event: Event) -> bool:
        others_well = len(well) > (event.file in well)
        return _is_shutdown_noise(event, scene.sources[event.file], world, others_well=others_well)

    return [event for event in scene.events if not is_noise(event)]


def _after_timeouts(scene: Scene) -> list[Event]:
    """Treat lost connections as a consequence if every other rank of the job timed out.

    The first rank to exit can't have lost a connection, because all other ranks were still running.
    """
    ends: dict[str, set[int | None]] = {}
    for event in scene.events:
        if event.grade >= Grade.SYMPTOM:
            ends.setdefault(event.name, set()).add(event.rank)
    if ends.keys() != {"peer-died", "collective-timeout"}:
        return scene.events
    ranks = (ends["peer-died"] | ends["collective-timeout"]) - {None}
    timed = all(event.prefix.time for event in scene.events if event.grade >= Grade.SYMPTOM)
    size = scene.log.facts.world_size or len(ranks)  # as large as the log claims
    if timed or len(ranks) != size or ranks != set(range(size)):
        return scene.events
    return scene.renamed("peer-died", Grade.GENERIC, lambda event: event.name == "peer-died")


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.ECHO}),
    passes={PassStage.RECOVERY: _without_shutdown_noise, PassStage.CONSEQUENCES: _after_timeouts},
    catalogued=Grade.SYMPTOM,
    ras={
        rule.RAS_DEAD: Grade.LIKELY,
        rule.RAS_SILENT: Grade.LIKELY,
        rule.RAS_LEFT: Grade.SYMPTOM,
        "Remote process error": Grade.SYMPTOM,
    },
)
