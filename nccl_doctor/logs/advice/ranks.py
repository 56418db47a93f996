"""Words for ranks that differ, wait, die or were started wrongly."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.collectives import never_started, waiting
from nccl_doctor.logs.hang import absent, ranks_of, standing
from nccl_doctor.logs.recorded import WORDING
from nccl_doctor.logs.rule import SCRIPT
from nccl_doctor.logs.rules.ras import LINE
from nccl_doctor.logs.rules.scripts import EXITED
from nccl_doctor.logs.words import Said, said


def _collective_timeout(case: Case) -> Said:
    if case.first.wording in (LINE, WORDING):
        return _told_by_rank(case)
    places = waiting(case.cause.events)
    told = "; ".join(f"{ranks_of(ranks)} in {op} number {seq}" for (seq, op), ranks in list(places.items())[:4])
    missing = absent({rank for ranks in places.values() for rank in ranks}, case.log.facts.world_size)
    sentence = f"{case.who} waited in a collective that did not end in time"
    if told:
        sentence += f": {told}"
    if told and missing:
        sentence += f". No word of {ranks_of(missing)}: look there first"
    elif len(places) > 1:
        sentence += ". Those with the smallest number are behind: look there first"
    if never_started(case.cause.events):
        return said(
            sentence + ".",
            "Not one collective had ended before, so the ranks never came together: an interface, a firewall, RDMA. "
            "Test:",
            case.check(),
        )
    return said(
        sentence + ".",
        "Find what the ranks that are missing or behind did meanwhile (an exception, data loading, a checkpoint, "
        "other code). TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 keep a record; give it to "
        "nccl-doctor logs.",
        case.check(),
    )


def _told_by_rank(case: Case) -> Said:
    """What RAS or the flight recorder says of each rank, the culprits' words first."""
    words = [f"{ranks_of([e.rank]) if e.rank is not None else 'a rank'} {e.message}" for e in case.cause.events[:3]]
    more = len(case.cause.events) - len(words)
    return said(
        "; ".join(words) + (f"; and {more} more" if more > 0 else "") + ".",
        "Look at what the first of them did meanwhile (py-spy dump, its own log): the others wait for it.",
        case.check(),
    )


def _collective_mismatch(case: Case) -> Said:
    if case.first.wording == WORDING:
        return _told_by_rank(case)
    places = waiting(case.cause.events)
    told = "; ".join(f"{ranks_of(ranks)} {op} number {seq}" for (seq, op), ranks in list(places.items())[:4])
    return said(
        "The ranks do not call the same collectives with the same sizes"
        + (f": {told}." if told else f" (seen by {case.who})."),
        "Look for code that depends on the rank or on its data (an uneven last batch, a branch, "
        "find_unused_parameters), and for hosts with other code or other NCCL_ALGO and NCCL_PROTO.",
        case.check(),
    )


def _peer_died(case: Case) -> Said:
    if case.first.wording in (LINE, WORDING):
        return said(
            f"{case.first.message[:1].upper()}{case.first.message[1:]}.",
            "Look on that host whether the process is still there (ps, dmesg, the scheduler's record), whether it is "
            "stopped or stuck, and whether the host is reached:",
            case.check(),
        )
    missing = standing(case.log.facts).missing
    hint = f" No line is of {ranks_of(missing)}." if missing else ""
    return said(
        f"{case.who} lost the connection to a rank that had ended; why that one ended, this log does not say.{hint}",
        'Look for the first error, "Killed" or a message of the kernel (dmesg) on the other hosts, and give all '
        "ranks' logs "
        "to nccl-doctor logs together.",
        case.check(),
    )


def _script(case: Case) -> Said:
    if case.first.wording != EXITED:
        return said(
            f"The script itself failed on {case.who}: {' '.join(case.first.message.split())[:160]}",
            "Read the traceback above that line; nothing in the log points at NCCL or the network.",
        )
    return said(
        "A process ended with an exit code that no signal gives, and the log does not hold its last words.",
        "Look into that rank's own output: torchrun --log-dir DIR --tee 3 keeps it, and @record on main() "
        "(torch.distributed.elastic.multiprocessing.errors) puts the traceback into torchrun's summary.",
    )


def _killed(case: Case) -> Said:
    return said(
        f"A process of {case.who} was ended from outside: the kernel's OOM killer, the scheduler, a time limit or a "
        "person.",
        "Ask dmesg and the scheduler (sacct, kubectl describe pod) on that host who sent the signal.",
    )


def _world_size(case: Case) -> Said:
    return said(
        f"Ranks and world size do not fit together (seen by {case.who}): two processes with one rank, a job that "
        "another one's ranks came to, or a size that does not divide.",
        "Compare RANK, WORLD_SIZE, --nnodes, --node_rank and --nproc_per_node of all hosts; nccl-doctor launch "
        "prints them.",
    )


def _env_missing(case: Case) -> Said:
    return said(
        f"{case.who} was started without the variables that torch.distributed reads (RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR, MASTER_PORT).",
        "Start it by torchrun, which sets them; a script that wants --local_rank reads LOCAL_RANK instead. "
        "nccl-doctor launch prints the command for each host.",
    )


def _env_bad(case: Case) -> Said:
    return said(
        f"NCCL does not take a setting as it was meant on {case.who}.",
        "Correct or unset the variable or the file that the line names; look into ~/.nccl.conf and /etc/nccl.conf too:",
        case.check(),
    )


def _env_differs(case: Case) -> Said:
    return said(
        f"NCCL's variables differ between ranks (seen by {case.who}): what one chooses does not fit the others.",
        "Make them the same on all hosts, ~/.nccl.conf and /etc/nccl.conf included:",
        case.check(),
    )


def _unknown(case: Case) -> Said:
    known = case.first.catalogued
    since = f" (in NCCL since {known.first})" if known else ""
    return said(
        f"NCCL failed on {case.who}{since}, and the log does not say why.",
        "Run again with NCCL_DEBUG=INFO and give all ranks' output to nccl-doctor logs.",
        case.check(),
    )


def _wrong_result(case: Case) -> Said:
    return said(
        f"The collective of {case.who} came out with wrong values.",
        "Take the host out of the job and test it alone: memory errors (nvidia-smi -q), PCIe ACS and IOMMU, the "
        "NIC's firmware.",
        case.check(),
    )


ADVICE = {
    "collective-timeout": _collective_timeout,
    "collective-mismatch": _collective_mismatch,
    "peer-died": _peer_died,
    "killed": _killed,
    SCRIPT: _script,
    "world-size-mismatch": _world_size,
    "launcher-env-missing": _env_missing,
    "env-bad-value": _env_bad,
    "env-mismatch": _env_differs,
    "nccl-unknown-error": _unknown,
    "allreduce-wrong-result": _wrong_result,
}
