"""NCCL failed, and the log does not say why.

What it means: A warning that speaks for no known cause, or only the class of an error ("unhandled system error",
"internal error").

How we know: The last line of NCCL's that is no known harmless one. Without NCCL_DEBUG, torch shows only what stands
behind "Last error:".

Fix: Run again with NCCL_DEBUG=INFO and give all ranks' output to `nccl-doctor logs`; `nccl-doctor check` tests what
it needs.

References: NCCL's src/debug.cc; NCCL user guide, troubleshooting.
"""

from nccl_doctor.logs.rule import RAS_ERROR, Grade, generic
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD918")


def _advice(case: Case) -> Advice:
    known = case.first.catalogued
    since = f" (in NCCL since {known.first})" if known else ""
    return advise(
        f"NCCL failed on {case.who}{since}, and the log does not say why.",
        "Run again with NCCL_DEBUG=INFO and give all ranks' output to nccl-doctor logs.",
        case.check(),
    )


RULES = (
    generic(
        r"NCCL WARN ",
        "n1:1:2 [0] x.cc:1 NCCL WARN Something that no table here knows",
        unless=r"NCCL/NET \(shim\) mismatch recommended",
    ),
    generic(r"NCCL DIAG \[?(?:ERROR|FAIL|FATAL|WARN)\w*\]? ", "n1:4242 NCCL DIAG [ERROR] GPU 3: ATS is off"),
    generic(
        r"(?:NCCL error in: |NCCL [Ee]rror:? |[Nn]ccl(?:System|Internal|InvalidUsage|InvalidArgument)(?:Error)?:"
        r"|unhandled system error|"
        r"Test NCCL failure|nccl(?:All|Comm|Group|Reduce|Broadcast|Send|Recv|Get)\w*(?:\(.*\))? failed"
        r"|NcclError|ncclUnhandledSystemError|Failed, NCCL error)",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
    ),
)


def _unknown_warning(case: Case) -> Severity | None:
    """Info for unknown warnings in a log where nothing failed."""
    only_warned = all(event.prefix.level == "WARN" for event in case.cause.events)
    return Severity.INFO if only_warned and not case.log.facts.gave_up else None


SIGNS = LogSigns(
    RULES,
    _advice,
    after=("cuda-error", "peer-died", "rendezvous-timeout"),
    echo=True,
    catalogued=Grade.GENERIC,
    of_catalogue=True,
    ras={RAS_ERROR: Grade.GENERIC},
    severity=_unknown_warning,
)
