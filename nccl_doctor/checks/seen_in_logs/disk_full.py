"""A disk, or a user's share of it, is full.

What it means: A checkpoint, a cache or a log could not be written. The rank that wrote it ends; the others wait for it.

How we know: "[Errno 28] No space left on device" or "[Errno 122] Disk quota exceeded" for a file that is not in
/dev/shm, torch's "PytorchStreamWriter failed writing file" and "unexpected pos".

Fix: df -h, df -i (inodes) and quota -s on the host that is named; write checkpoints elsewhere, keep fewer of them.

References: errno(3), ENOSPC and EDQUOT; caffe2/serialize/inline_container.cc.
"""

from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD920", explains=("collective-timeout", "peer-died", "killed", "script-failed"))

ADVICE = make_advice(
    "A disk is full, or a quota used up, on {who}: a file could not be written.",
    "Look at df -h, df -i and quota -s there, for the folder that the line names; then make room.",
    command=None,
)

RULES = (
    root(
        r"(?i:no space left on device|disk quota exceeded)|\[Errno (?:28|122)\]",
        "OSError: [Errno 28] No space left on device: '/scratch/run7/step_900.pt'",
        unless=r"(?i:/dev/shm|shared memory|\bshm|fallocate|/torch_\d|nccl-|inotify|file watch)",
    ),
    root(
        r"PytorchStreamWriter failed writing file|inline_container\.cc.{0,80}unexpected pos",
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598",
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
