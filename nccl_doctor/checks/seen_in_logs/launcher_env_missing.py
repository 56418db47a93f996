"""A process was started without the variables that torch.distributed reads.

What it means: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT is missing, usually because the script was
started with python instead of torchrun. A script also fails if it requires the --local_rank option, which torchrun does
not pass, or if it rejects the --local-rank option, which torch.distributed.launch passes.

MPI might fail to start if it can't use the launcher's process management interface (PMI).

How we know: The log contains "environment variable RANK expected, but not set", "KeyError: 'LOCAL_RANK'", or
"unrecognized arguments: --local-rank=0".

Fix: Start the script with torchrun, or set the missing variables from the scheduler's variables. `nccl-doctor launch`
prints the command for each host.

References: torch/distributed/rendezvous.py.
"""

from nccl_doctor.logs.rule import Grade, generic, likely, root, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD916")

_PASSED = r"unrecognized arguments: .*--local[-_]rank"
_TOO_EARLY = r"Default process group has not been initialized"
_PMI = r"PMIX? (?:server|init)\S* .*fail|was not built with SLURM's PMI support|PMI2?_Init failed"
_MPI = r"Fatal error in (?:P?MPI|internal)_Init|It looks like MPI_INIT failed"
_PLAIN = make_advice(
    "{who} started without the variables that torch.distributed reads (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT).",
    "Start it with torchrun, which sets them; a script that expects --local_rank can read LOCAL_RANK instead. "
    "nccl-doctor launch prints the command for each host.",
    command=None,
)


def _advice(case: Case) -> Advice:
    if case.first.wording == _PASSED:
        return advise(
            f"The launcher passes --local-rank to {case.who}, but the script does not accept it.",
            "Start it with torchrun, which sets LOCAL_RANK instead, or make the script accept both spellings "
            "(--local_rank before torch 2.0, --local-rank since).",
        )
    if case.first.wording == _TOO_EARLY:
        return advise(
            f"The script of {case.who} used torch.distributed before init_process_group, or after "
            "destroy_process_group.",
            "Call init_process_group first, on every rank; it reads variables that torchrun sets, which "
            "nccl-doctor launch prints for each host.",
        )
    if case.first.wording in (_PMI, _MPI):
        return advise(
            f"MPI could not start its processes on {case.who}, before NCCL and torch came into play.",
            "Use the same MPI on all hosts, and have srun use the PMI that this MPI was built for (srun --mpi=list). "
            "Test MPI alone: the same mpirun or srun with hostname as the program, then with an MPI program.",
        )
    return _PLAIN(case)


RULES = (
    *roots(
        r"environment variable (?:\w+) expected, but not set",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
        r"env:// rendezvous: \w+ not set",
        "ValueError: env:// rendezvous: WORLD_SIZE not set",
        r"KeyError: '(?:(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|SLURM_\w+|OMPI_\w+"
        r"|PMI\w*_\w+)'",
        "KeyError: 'LOCAL_RANK'",
        r"(?:LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)[`'\"]? (?:env\S* )?(?:var\S* )?(?:is|are|was|must be"
        r"|should be|needs to be) (?:not (?:been )?set|set|missing|undefined|required)",
        "RuntimeError: MASTER_ADDR is not set",
        _PASSED,
        "train.py: error: unrecognized arguments: --local-rank=0",
        r"(?:arguments are required|requires? (?:argument|the)).*--?(?:local[-_]rank|node[-_]rank"
        r"|nproc[-_]per[-_]node|master[-_]addr)",
        "error: the following arguments are required: --local_rank",
        r"(?:object has no attribute 'local_rank'|No module named 'mpi4py')",
        "AttributeError: 'Namespace' object has no attribute 'local_rank'",
    ),
    likely(
        _TOO_EARLY,
        "RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.",
    ),
    generic(  # for a process that is meant to run alone this is not a fault
        r"Not using distributed mode", "Not using distributed mode"
    ),
    root(_PMI, "OMPI was not built with SLURM's PMI support and therefore cannot execute."),
    root(_MPI, "Abort(3712399) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:"),
)

SIGNS = LogSigns(RULES, _advice, warning_up_to=Grade.GENERIC)
