"""A disk is full, or a user's quota is exhausted.

What it means: a checkpoint, a cache or a log could not be written. A rank that can't write a file exits, and the other
ranks wait for that rank until they time out. If /tmp is full, torch.compile, Ray and programs that create sockets in
/tmp fail, and a hanging job can't write its dumps.

How we know: as the SSH user, the check uses statvfs(3) to read the free space and the free inodes of TMPDIR, /tmp,
/var/tmp and the home directory. A directory with less than 64 MiB of free space or fewer than 100 free inodes is
reported. Logs contain "[Errno 28] No space left on device" or "[Errno 122] Disk quota exceeded" for a file outside
/dev/shm. If torch can't write a checkpoint, the log contains "PytorchStreamWriter failed writing file" or "unexpected
pos".

Fix: find the full disk or the exhausted quota with `df -h`, `df -i` (inodes) and `quota -s` on the host. Remove old
files, keep fewer checkpoints, or set TMPDIR and the checkpoint directory to paths on a disk with free space. To move
caches out of the home directory, set XDG_CACHE_HOME, HF_HOME and TRITON_CACHE_DIR.

References: errno(3), ENOSPC and EDQUOT; caffe2/serialize/inline_container.cc; statvfs(3).
"""

import re

from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import capital, fold, grouped
from nccl_doctor.text.shell import line

MIB = 1 << 20
LEAST_BYTES = 64 * MIB
LEAST_FILES = 100
_PLAIN = re.compile(r"/[\w./+-]{0,200}", re.ASCII)
"""Pattern for paths that are safe to show and paste.

Any other path appears as "the directory that TMPDIR names".
"""


@check(
    "NCD920",
    phrase="disk is full",
    severity=Severity.WARNING,
    needs=("temporary",),
    in_logs=("collective-timeout", "peer-died", "killed", "script-failed"),
    row="limits",
    errors=("EDQUOT",),
)
def disk_full(view: View) -> Findings:
    full: dict[tuple[str, bool], dict[str, int]] = {}
    temporary: dict[str, str] = {}  # by host, the directory for temporary files
    for host, facts in view.facts:
        folders = known(facts.temporary)
        temporary[host.name] = folders[0].path if folders else ""
        for folder in folders:
            if folder.free_bytes < LEAST_BYTES:
                full.setdefault((folder.path, True), {})[host.name] = folder.free_bytes
            elif folder.free_files is not None and folder.free_files < LEAST_FILES:
                full.setdefault((folder.path, False), {})[host.name] = folder.free_files
    alike = grouped(((by_size, tuple(free.items())), path) for (path, by_size), free in full.items())
    for (by_size, rows), paths in alike.items():
        free = dict(rows)
        hosts, most = tuple(free), max(free.values())
        at_most = "only" if len(set(free.values())) == 1 else "at most"
        if by_size:
            room = f"{'less than 1' if most < MIB else f'{at_most} {most // MIB}'} MiB left"
        else:
            room = f"room for {at_most} {most} more files"
        plain = [path for path in paths if _PLAIN.fullmatch(path)]
        strange = ["the directory that TMPDIR names"] if len(plain) < len(paths) else []
        where = f"{capital(' and '.join((*plain, *strange)))} on {fold(hosts)}"
        look = " The full file systems:" if len(plain) > 1 else " The full file system:" if plain else ""
        used = {temporary[host] for host in hosts}
        moves = [", or set TMPDIR to a directory with free space"] if used.intersection(paths) else []
        if set(paths) - used - {"/tmp", "/var/tmp"}:  # noqa: S108 - the probe's own list; what is left is the home
            moves.append(", or move caches out of the home directory (XDG_CACHE_HOME, HF_HOME, TRITON_CACHE_DIR)")
        df = line("df -h -- {*paths}", paths=plain) if by_size else line("df -i -- {*paths}", paths=plain)
        yield Finding(
            hosts=hosts,
            message=f"{where} {'has' if len(paths) == 1 else 'have'} {room}, so torch, Ray and "
            "data loaders will fail to write there.",
            facts={"path": paths[0], "paths": paths, "free_bytes" if by_size else "free_files": min(free.values())},
            fix=pasted(f"Remove old files there{''.join(moves)}.{look}", on_each(hosts, df) if plain else ()),
        )


ADVICE = make_advice(
    "A disk or a quota is full on {who}, so a file could not be written.",
    "On that host, run df -h, df -i and quota -s for the folder that the log line names; then free space.",
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
