"""Processes that were started wrongly or not at all: torchrun, Lightning, DeepSpeed, MPI, SSH."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, generic, likely, root

RULES: tuple[Rule, ...] = (
    root(
        "launcher-env-missing",
        r"environment variable (?:\w+) expected, but not set",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
    ),
    root(
        "launcher-env-missing",
        r"env:// rendezvous: \w+ not set",
        "ValueError: env:// rendezvous: WORLD_SIZE not set",
    ),
    root(
        "launcher-env-missing",
        r"KeyError: '(?:(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|SLURM_\w+|OMPI_\w+"
        r"|PMI\w*_\w+)'",
        "KeyError: 'LOCAL_RANK'",
    ),
    root(
        "launcher-env-missing",
        r"(?:LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)[`'\"]? (?:env\S* )?(?:var\S* )?(?:is|are|was|must be"
        r"|should be|needs to be) "
        r"(?:not (?:been )?set|set|missing|undefined|required)",
        "RuntimeError: MASTER_ADDR is not set",
    ),
    root(
        "launcher-env-missing",
        r"unrecognized arguments: .*--local[-_]rank",
        "train.py: error: unrecognized arguments: --local-rank=0",
    ),
    root(
        "launcher-env-missing",
        r"(?:arguments are required|requires? (?:argument|the)).*--?(?:local[-_]rank|node[-_]rank"
        r"|nproc[-_]per[-_]node|master[-_]addr)",
        "error: the following arguments are required: --local_rank",
    ),
    root(
        "launcher-env-missing",
        r"(?:object has no attribute 'local_rank'|No module named 'mpi4py')",
        "AttributeError: 'Namespace' object has no attribute 'local_rank'",
    ),
    likely(
        "launcher-env-missing",
        r"Default process group has not been initialized",
        "RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.",
    ),
    root(
        "launcher-env-missing",
        r"PMIX? (?:server|init)\S* .*fail|was not built with SLURM's PMI support|PMI2?_Init failed",
        "OMPI was not built with SLURM's PMI support and therefore cannot execute.",
    ),
    root(
        "world-size-mismatch",
        r"(?i:world(?:_| )size) ?\(?(?:=|:)? ?\d+\)? (?:is not|isn't|must be|should be|not) (?:a )?(?:divisible"
        r"|multiple|equal|match)",
        "AssertionError: world_size (12) is not divisible by tensor_model_parallel_size (8)",
    ),
    root(
        "world-size-mismatch",
        r"(?i:(?:invalid|wrong|bad) (?:rank|world[ _]size))\b.*(?:interval|\[0|range|\d|world)",
        "ValueError: Invalid rank 8, rank should be in the interval [0, 7]",
    ),
    root(
        "world-size-mismatch",
        r"\b[Rr]ank\b.{0,12}(?:>=|must be less than|should be less than|must be smaller than) ?(?:the )?(?i:world(?:_"
        r"| )size)",
        "AssertionError: rank 8 >= world_size 8",
    ),
    root(
        "world-size-mismatch",
        r"number of tasks per node configured in SLURM .* does not match|`--ntasks=\d+` in your SLURM",
        "ValueError: You set `devices=8` in Lightning, but the number of tasks per node configured in SLURM "
        "`--ntasks-per-node=1` does not match. HINT: Set `devices=1`.",
    ),
    root(
        "world-size-mismatch",
        r"not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 8 != 1 * 1 * 2",
    ),
    root(
        "world-size-mismatch",
        r"not enough slots available in the system",
        "There are not enough slots available in the system to satisfy the 16 slots that were requested",
    ),
    root(
        "ssh-unreachable",
        r"ssh: connect to host (?P<host>\S+) port \d+: ",
        "ssh: connect to host gpu-17 port 22: Connection timed out",
    ),
    root(
        "ssh-unreachable",
        r"(?:ssh|kex)_exchange_identification: |rcmd: socket: Permission denied"
        r"|Connection (?:closed|reset) by (?P<ip>[0-9.]+) port 22\b",
        "kex_exchange_identification: Connection closed by remote host",
    ),
    root(
        "ssh-auth-failed",
        r"Permission denied(?: \((?:publickey|password|gssapi|keyboard)|, please try again)",
        "gpu-17: Permission denied (publickey,password).",
    ),
    root("ssh-host-key-unknown", r"Host key verification failed", "Host key verification failed."),
    root(
        "ssh-host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
    ),
    generic(
        "ssh-unreachable",
        r"(?:ORTE|PRTE|PRRTE) (?:was unable to reliably start|has lost communication with|does not know how to route)",
        "ORTE was unable to reliably start one or more daemons.",
    ),
)
