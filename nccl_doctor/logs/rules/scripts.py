"""The training script's own failures: exceptions that no library of this field raises, and bare exit codes."""

from __future__ import annotations

from nccl_doctor.logs.rule import SCRIPT, WEB, Rule, clue, generic, hint, likely

_PLAIN = (
    r"(?:Value|Type|Key|Index|Attribute|Name|UnboundLocal|Assertion|ZeroDivision|FileNotFound|IsADirectory"
    r"|NotImplemented|ModuleNotFound|Import|UnicodeDecode|UnicodeEncode|JSONDecode|Recursion|Overflow|FloatingPoint|EOF|Unpickling)Error"
)

EXITED = (
    r"(?:failed \(exitcode: (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\)"
    r"|exits with return code = (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|srun: error: (?P<host>\S+): tasks? \S+: Exited with exit code (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\b"
    r"|returned non-zero exit status (?:[1-9]|[1-9]\d|1[01]\d|12[0-7])\.)"
)
"""The bare exit code that torchrun, DeepSpeed, Slurm, torch.distributed.launch and Accelerate tell; 128 and more is a
signal's."""

TERMINATING = (
    r"(?:Forcefully terminating all other processes|[Ss]ending process \d+ closing signal"
    r"|Closing process \d+ via signal|Killing subprocess \d+|Terminating (?:StepId|job step|all)|[Jj]ob step aborted"
    r"|Force Terminated StepId"
    r"|\[rank: \d+\] Child process with PID \d+ terminated with code"
    r"|primary job (?:terminated|job)|MPI_ABORT was invoked|mpirun (?:detected|has exited due)|KILLING (?:JOB|TASK)"
    r"|prterun (?:detected|has exited due)|process returned a non-zero exit code|[Kk]illing (?:all )?remaining"
    r"|Shutting down (?:all )?workers|Terminat\w+ (?:all )?(?:other|remaining|sibling) (?:processes|ranks|workers))"
)
"""A launcher says that it ends the other processes: what is killed after that was killed by it."""

RULES: tuple[Rule, ...] = (
    clue(
        SCRIPT,
        TERMINATING,
        "[rank: 0] Child process with PID 812 terminated with code 1. Forcefully terminating all other processes",
    ),
    hint(
        SCRIPT,
        r"(?:^|\] |\]: |> |\) |\| |\d: )(?:[\w.]+\.)?\w*(?:Error|Exception)$",
        "AssertionError",
        unless=WEB,
    ),
    hint(
        SCRIPT,
        r"(?:Assertion .{1,300} failed|Check failed: |terminate called after throwing an instance"
        r"|Fatal Python error: |\bFATAL(?: ERROR)?: )",
        "python: /src/kernel.cpp:88: void run(): Assertion `n % 8 == 0' failed.",
        unless=WEB + r"|c10::Dist|ProcessGroup",
    ),
    # torch's excepthook writes the rank before the lines of an exception that nobody caught (torch 2.4,
    # torch/distributed/distributed_c10d.py)
    likely(
        SCRIPT,
        r"\[rank(?P<rank>\d+)\]: (?:[\w.]+\.)?" + _PLAIN + r"(?:: |$)",
        "[rank1]: ValueError: bad shape",
    ),
    likely(
        SCRIPT,
        r"RuntimeError: (?:The size of tensor a|mat1 and mat2 shapes|shape '|Sizes of tensors must match"
        r"|Expected all tensors to be on the same device|Error\(s\) in loading state_dict"
        r"|element 0 of tensors does not require grad|Trying to backward through the graph"
        r"|one of the variables needed for gradient|stack expects each tensor|Given groups="
        r"|[Ee]xpected scalar type|a leaf Variable that requires grad)",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (16) at non-singleton dimension 0",
    ),
    generic(
        SCRIPT,
        EXITED,
        "E1120 10:00:05.456000 1234 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 1 (pid: 1301) of binary: /opt/py/bin/python",
    ),
    hint(
        SCRIPT,
        r"(?:^|\] |\]: |> |\) |\| |\d: )(?:[\w.]+\.)?\w*"
        r"(?:Error|Exception): ",
        "ValueError: bad shape",
        unless=WEB + r"|raise |torch\.distributed\.elastic\S*(?:Error|Exception): |subprocess\.Called",
    ),
)
