"""NCCL failed, and the log does not say why.

What it means: The log contains only a warning without a known cause, or a general error such as "unhandled system
error" or "internal error".

How we know: NCCL printed a message that nccl-doctor does not recognize as harmless. If NCCL_DEBUG is not set, the only
text from NCCL is after "Last error:" in torch's exception.

Fix: Run the job again with NCCL_DEBUG=INFO, and pass all ranks' output to `nccl-doctor logs`. `nccl-doctor check` tests
whether the hosts meet NCCL's requirements.

References: NCCL's src/debug.cc; NCCL user guide, troubleshooting.
"""

from dataclasses import replace

from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import RAS_ERROR, Grade, clue, generic
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD918")


def _advice(case: Case) -> Advice:
    known = case.first.catalogued
    since = f" (in NCCL since {known.first})" if known and known.first else ""
    if any(STRANGER.match(event.text) for event in case.cause.events):
        peer = f" ({case.target})" if case.address.ip else ""
        find = " Find out which host has that address." if peer else ""
        return advise(
            f"A peer that is not a rank of this job connected to NCCL's port on {case.who}{peer}.",
            "It might be a rank of another job, a port scanner, or a rank whose NCCL version, NCCL_SOCKET_MAGIC or "
            f"socket encryption differs.{find}",
            case.check(),
        )
    if any(NOT_LOCAL.match(event.text) for event in case.cause.events):
        return advise(
            f"NCCL on {case.who} could not bind a socket: the host lacks the address, or can't use it yet.",
            "See whether the interface that NCCL chose is up and keeps its address (ip address; an IPv6 address might "
            "still be tentative), and whether NCCL_COMM_ID names an address of that host.",
            case.check(),
        )
    if known and "MSCCL" in known.template:
        return advise(
            f"RCCL could not use the algorithm files of its MSCCL scheduler on {case.who}.",
            "Set RCCL_MSCCL_ENABLE=0 to run without it, or reinstall the files (share/rccl/msccl-algorithms beside "
            "librccl.so, or the folder that MSCCL_ALGO_DIR names).",
            case.check(),
        )
    because = case.hinted("In many cases this error indicates ")
    if because:
        return advise(
            f"NCCL failed on {case.who}{since}: according to NCCL, such an error often means {because}",
            f"To confirm, NCCL advises: {case.hinted('To confirm, ')}",
            case.check(),
        )
    return advise(
        f"NCCL failed on {case.who}{since}, and the log does not say why.",
        "Run again with NCCL_DEBUG=INFO and give all ranks' output to nccl-doctor logs.",
        case.check(),
    )


HINTED = clue(
    r"HINT: (?:In many cases|To confirm)",
    "n1:1:2 [0] x.cc:1 NCCL WARN HINT: To confirm, set NCCL_CROSS_NIC=0 to disable cross-rail communication (see x).",
)
"""The two lines of advice that NCCL 2.31 and later versions print after some warnings."""

STRANGER = generic(
    r"Handshake receive from .{1,80} failed, discarding peer connection|peer sent invalid or duplicate socket index \d"
    r"|socketFinalizeAccept: wrong magic",
    "n1:1:2 [0] NCCL WARN Handshake receive from 10.0.0.7<41234> failed, discarding peer connection",
)

NOT_LOCAL = generic(
    r"NCCL WARN .*Call to bind failed ?: ?Cannot assign requested address",
    "n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed : Cannot assign requested address",
)

NEAR = 20
"""Maximum number of lines between a warning and its hint, since other processes might write lines in between."""

RULES = (
    STRANGER,  # before any warning
    NOT_LOCAL,
    generic(
        r"NCCL WARN ",
        "n1:1:2 [0] x.cc:1 NCCL WARN Something that no table here knows",
        unless=r"NCCL/NET \(shim\) mismatch recommended|HINT: (?:In many cases|To confirm)",
    ),
    HINTED,
    generic(  # RCCL (projects/rccl/src/debug.cc)
        r":\d+ \[-?\d+\] \[FATAL ERROR\]: ", "n1:1:2 [0] [FATAL ERROR]: Something that no table here knows"
    ),
    generic(r"NCCL DIAG \[?(?:ERROR|FAIL|FATAL|WARN)\w*\]? ", "n1:4242 NCCL DIAG [ERROR] GPU 3: ATS is off"),
    generic(
        r"(?:NCCL error in: |NCCL [Ee]rror:? |[Nn]ccl(?:System|Internal|InvalidUsage|InvalidArgument)(?:Error)?:"
        r"|unhandled system error|"
        r"Test NCCL failure|nccl(?:All|Comm|Group|Reduce|Broadcast|Send|Recv|Get)\w*(?:\(.*\))? failed"
        r"|NcclError|ncclUnhandledSystemError|Failed, NCCL error)",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
    ),
    # nccl2, the default backend since torch 2.15 (torch/csrc/distributed/c10d/nccl2)
    generic(
        r"(?:nccl hit async error on rank \d|Async error on rank \d|NCCL Async Error: |NCCL operation failed"
        r"|NCCL communicator was aborted after a previous error|due to error - timeout watchdog detected"
        r"|Failed to (?:initialize NCCL communicator|get NCCL unique ID): )",
        "[rank1]:[E1128 12:00:10 ProcessGroupNCCLUtils.cpp:290] [TC][rank=1][name=0] nccl hit async error on rank 1: "
        "internal error - please report this issue to the NCCL developers",
    ),
)


def _with_the_warning(scene: Scene) -> list[Event]:
    """Assign each hint from NCCL to the preceding warning of the same process."""
    warned: dict[tuple[str, str | None], Event] = {}
    events = []
    for event in scene.events:
        process = (event.file, event.prefix.pid)
        if event.wording == HINTED.pattern:
            about = warned.get(process)
            if about is not None and event.line - about.line <= NEAR:
                event = replace(event, name=about.name, grade=about.grade)  # noqa: PLW2901 - the same one, understood
        elif event.prefix.level == "WARN":
            warned[process] = event
        events.append(event)
    return events


def _unknown_warning(case: Case) -> Severity | None:
    """Return the severity "info" for unknown warnings in a log that shows no failure."""
    only_warned = all(event.prefix.level == "WARN" for event in case.cause.events)
    return Severity.INFO if only_warned and not case.log.facts.gave_up else None


SIGNS = LogSigns(
    RULES,
    _advice,
    after=("cuda-error", "peer-died", "rendezvous-timeout"),
    roles=frozenset({Role.ECHO, Role.OF_CATALOGUE}),
    catalogued=Grade.GENERIC,
    ras={RAS_ERROR: Grade.GENERIC},
    severity=_unknown_warning,
    passes={PassStage.MEANING: _with_the_warning},
)
