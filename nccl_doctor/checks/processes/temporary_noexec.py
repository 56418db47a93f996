"""The directory for temporary files is on a file system that is mounted with noexec.

What it means: torch.compile can't load the libraries that it builds in TMPDIR (by default /tmp), and fails with "failed
to map segment from shared object". Jobs without torch.compile are not affected.

How we know: the check reads the mount options of the SSH user's TMPDIR, or of /tmp if TMPDIR is not set (statvfs(3),
ST_NOEXEC). If the hosts file sets TORCHINDUCTOR_CACHE_DIR for a host, or a TMPDIR outside the directories that the
check found to be mounted with noexec, nothing is reported. Variables that only the job's script sets are not known.

Fix: set TMPDIR or TORCHINDUCTOR_CACHE_DIR to a directory on another file system, such as /var/tmp.

References: torch/_inductor/runtime/cache_dir_utils.py (`default_cache_dir`); mount(8).
"""

from collections.abc import Mapping, Sequence

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.snapshot.system import TemporaryFolder
from nccl_doctor.text.hostlist import fold, grouped

BETTER = "/var/tmp"  # noqa: S108 - the other folder for temporary files


@check(
    "NCD609",
    phrase="temporary directory is mounted with noexec",
    severity=Severity.WARNING,
    needs=("temporary",),
    row="limits",
)
def temporary_noexec(view: View) -> Findings:
    rows = ((host, known(facts.temporary)) for host, facts in view.facts)
    alternatives = {
        host.name: any(folder.path == BETTER and not folder.noexec for folder in folders)
        for host, folders in rows
        if folders and _is_noexec(host.node.env, folders)
    }
    for has_better, hosts in grouped((better, name) for name, better in alternatives.items()).items():
        summary = "Set TMPDIR, or TORCHINDUCTOR_CACHE_DIR alone, to a directory on a file system that allows execution"
        yield Finding(
            hosts=tuple(hosts),
            message=f"The temporary directory on {fold(hosts)} is mounted with noexec, so torch.compile can't "
            "load the code that it builds there.",
            facts={"hosts": hosts},
            fix=setting(f"{summary}:", "TMPDIR", dict.fromkeys(hosts, BETTER))
            if has_better
            else Fix(summary=f"{summary}."),
        )


def _is_noexec(env: Mapping[str, str], folders: Sequence[TemporaryFolder]) -> bool:
    """Return True if torch.compile builds libraries in a directory that is mounted with noexec.

    ``env`` contains the variables that the hosts file sets. The first of ``folders`` is the default for TMPDIR.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in env:
        return False
    used = f"{env.get('TMPDIR') or folders[0].path}/"
    above = [folder for folder in folders if used.startswith(f"{folder.path.rstrip('/')}/")]
    return bool(above) and max(above, key=lambda folder: len(folder.path)).noexec
