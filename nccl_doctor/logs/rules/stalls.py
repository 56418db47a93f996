"""Where a run stood when nothing more was said, and who says that it stood: a hang has no error line.

NCCL: src/init.cc and src/bootstrap.cc; the table's head: nccl-tests, src/common.cu.
"""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, clue, generic, hint

CHOSEN = r"Bootstrap ?: Using (?:\[0\])?(?P<iface>[A-Za-z][A-Za-z0-9_.-]*):(?P<ip>[0-9a-fA-F.:]+)"
"""A process chose its interface."""

STARTED = r"nranks \d+ .*- Init START"
"""A rank waits for the others."""

CONNECTED = r"nranks \d+ .*- Init COMPLETE"
"""A rank has its communicator."""

TABLE = r"# +size +count +type   redop"
"""A benchmark begins; its rows follow."""

MEETING = r"torch/distributed/\S+\.py\", line \d+, in (?:init_process_group|_?store_based_barrier|\w*rendezvous\w*)"
"""A stack ends where processes meet."""

TALKING = (
    r"distributed_c10d\.py\", line \d+, in (?:barrier|monitored_barrier|all_reduce|all_gather\w*|broadcast\w*|gather"
    r"|scatter|reduce\w*|all_to_all\w*|send|recv)\b"
)
"""A stack ends in a collective."""

COMPLAINED = (
    r"(?i:(?:hangs?|hung|stuck|freezes|frozen|stalls|blocks|blocked) (?:right )?(?:here|forever|indefinitely"
    r"|at this (?:point|step|line|stage)|after this|for (?:hours|minutes|ever)))"
    r"|(?i:(?:nothing|no (?:more|further) (?:output|logs?|lines?)) (?:happens|is printed|after this"
    r"|any ?more|from here))"
    r"|(?i:(?:and then|then it|it just|program|script|training|process|job) (?:hangs|gets stuck|is stuck|freezes))"
)
"""Somebody wrote into the log what they saw."""

BROKE_OFF = r"^\^C|^\[mpiexec@\S+\] (?:Sending Ctrl-C|Press Ctrl-C)|Ctrl-C caught|mpirun: killing job"
"""Somebody ended it from the keyboard."""

INTERRUPTED = r"KeyboardInterrupt|Received (?:2|Signals\.SIGINT) death signal|got signal: 2\b"
"""The same, as Python and torchrun tell it."""

RULES: tuple[Rule, ...] = (
    clue("wrong-interface", CHOSEN, "n1:1:2 [0] NCCL INFO Bootstrap : Using eno1:10.0.0.1<0>"),
    clue(
        "rendezvous-timeout",
        STARTED,
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x9 - Init START",
        unless=r"nranks 1 ",
    ),
    clue(
        "collective-timeout",
        CONNECTED,
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    ),
    clue("collective-timeout", TABLE, "#       size         count      type   redop    root     time   algbw   busbw"),
    clue(
        "rendezvous-timeout",
        MEETING,
        '  File "/v/torch/distributed/distributed_c10d.py", line 1148, in init_process_group',
    ),
    clue("collective-timeout", TALKING, '  File "/v/torch/distributed/distributed_c10d.py", line 3145, in barrier'),
    clue("collective-timeout", COMPLAINED, "(it hangs here forever)"),
    clue("collective-timeout", BROKE_OFF, "^C"),
    generic("killed", INTERRUPTED, "KeyboardInterrupt"),
    hint(
        "rendezvous-timeout",
        r"(?i:initializing) (?:distributed|ddp|deepspeed distributed): GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/\d+",
        "initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8",
    ),
)
