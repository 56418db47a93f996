"""How logs show version-mismatch: NCCL's words for two versions, symbols and libraries that are not there."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, likely, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The versions that the log names, and what to make the same."""
    versions = " and ".join(case.log.facts.nccl_versions)
    seen = f" The log names NCCL {versions}." if len(case.log.facts.nccl_versions) > 1 else ""
    return advise(
        f"Libraries that do not fit together on {case.who}: another NCCL, CUDA or torch than the program was built "
        f"for, or than the other ranks have.{seen}",
        "Make them the same on all hosts: one nvidia-nccl package, no older libnccl.so in LD_LIBRARY_PATH. See what "
        "each has:",
        case.check(),
    )


RULES = (
    likely(
        r"NCCL DIAG \[INFO\] (?:GPU inventory: model|\w+ driver version:|NCCL version:) ?mismatch .*"
        r"rank\(s\) (?P<rank>\d+)",
        "NCCL DIAG [INFO] CUDA driver version: mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0",
    ),
    likely(
        r"WARN .*(?:Message truncated ?: received \d+|socketFinalizeAccept.*: wrong (?:type|magic))",
        "n1:9:9 [0] bootstrap.cc:60 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    root(
        r"(?:Mismatched NCCL (?:git )?versions? detected|NCCL version mismatch)",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22105",
    ),
    root(
        r"undefined symbol: (?:nccl|ncclx|rccl|cu[a-zA-Z]+|__nv|cudnn|_ZN\S*c10|_ZN\S*at[0-9]|_ZN\S*torch|iJIT|MPI_"
        r"|ucs_|uct_|ucp_)",
        "ImportError: libtorch_cuda.so: undefined symbol: ncclMemFree",
        unless=r"version MLX5",
    ),
    root(
        r"(?:libnccl|librccl|libcudart|libcudnn|libtorch_cuda)\.so\S*:? (?:cannot open shared object file"
        r"|version `.*' not found)",
        "OSError: libnccl.so.2: cannot open shared object file: No such file or directory",
    ),
    root(
        r"(?:compiled with (?:too old )?(?:version of )?NCCL.{0,60}but is running with|NCCL library is (?:too old"
        r"|not backwards)|"
        r"(?:were|was) compiled with different CUDA|detected CUDA version .* mismatches)",
        "n1:1:2 [0] x.cc:1 NCCL WARN NCCL library is too old. This application was compiled with NCCL version "
        "2.30.3, but is running with NCCL library version 2.29.2.",
    ),
    root(
        r"NCCL version .*(?:does not match|mismatch|differs|incompatible|is not supported|at least)",
        "RuntimeError: NCCL version 2.10.3 does not match the version 2.14.3 of the other ranks",
    ),
)

SIGNS = LogSigns(RULES, advice)
