"""Software that does not fit together, processes that were ended, and words that only say that something failed."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, benign, generic, likely, root, symptom

VERSION_RULES: tuple[Rule, ...] = (
    root(
        "version-mismatch",
        r"(?:Mismatched NCCL (?:git )?versions? detected|NCCL version mismatch)",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22105",
    ),
    root(
        "version-mismatch",
        r"undefined symbol: (?:nccl|ncclx|rccl|cu[a-zA-Z]+|__nv|cudnn|_ZN\S*c10|_ZN\S*at[0-9]|_ZN\S*torch|iJIT|MPI_"
        r"|ucs_|uct_|ucp_)",
        "ImportError: libtorch_cuda.so: undefined symbol: ncclMemFree",
        unless=r"version MLX5",
    ),
    root(
        "version-mismatch",
        r"(?:libnccl|librccl|libcudart|libcudnn|libtorch_cuda)\.so\S*:? (?:cannot open shared object file"
        r"|version `.*' not found)",
        "OSError: libnccl.so.2: cannot open shared object file: No such file or directory",
    ),
    root(
        "version-mismatch",
        r"(?:compiled with (?:too old )?(?:version of )?NCCL.{0,60}but is running with|NCCL library is (?:too old"
        r"|not backwards)|"
        r"(?:were|was) compiled with different CUDA|detected CUDA version .* mismatches)",
        "n1:1:2 [0] x.cc:1 NCCL WARN NCCL library is too old. This application was compiled with NCCL version "
        "2.30.3, but is running with NCCL library version 2.29.2.",
    ),
    root(
        "version-mismatch",
        r"NCCL version .*(?:does not match|mismatch|differs|incompatible|is not supported|at least)",
        "RuntimeError: NCCL version 2.10.3 does not match the version 2.14.3 of the other ranks",
    ),
)

KILLED_RULES: tuple[Rule, ...] = (
    likely(
        "killed",
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?:9|15|1)\b",
        "mpirun noticed that process rank 3 with PID 4242 on node gpu02 exited on signal 9 (Killed).",
    ),
    likely(
        "killed",
        r"(?:exitcode: -9\b|exit ?code:? (?:-9|137)\b|[Ss]ignal:? ?\(?9(?:[ ),:]|$)|Signal 9 \(SIGKILL\)|SIGKILL"
        r"|exited on signal 9"
        r"|return code = -(?:9|15)\b)",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 1168) of "
        "binary: python",
    ),
    likely(
        "killed",
        r"(?:killed by signal: (?:Killed|Terminated)|[Ee]xit [Cc]ode: +137|User defined signal)",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.",
    ),
    likely("killed", r"(?:^|: |\d )Killed(?: |$|\.)", "run.sh: line 12: 4242 Killed                  python train.py"),
    likely(
        "killed",
        r"(?:CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAIL)|[Jj]ob (?:was )?(?:preempted|evicted)|Preempted"
        r"|Evicted\b)",
        "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***",
    ),
    likely(
        "killed",
        r"(?:Received (?:1|15|Signals\.SIG\w+:? ?\d*) death signal"
        r"|SignalException: Process \d+ got signal: \d"
        r"|SIGHUP death signal)",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
        unless=r"Signals\.SIGINT|got signal: 2\b",
    ),
    likely(
        "killed",
        r"(?:Segmentation fault|exitcode: -11\b|SIGSEGV|exited on signal 11|Caught signal 11)",
        "Signal 11 (SIGSEGV) received by PID 4242",
    ),
    generic(
        "killed",
        r"(?:exited on signal \d+|exitcode ?: -\d|Signal 6 \(SIGABRT\)"
        r"|srun: error: \S+: task\S* \S+: (?:Killed|Terminated|Bus error|Aborted|Segm"
        r"|Exited with exit code 1[23]))",
        "srun: error: n1: task 3: Killed",
    ),
    symptom(
        "peer-died",
        r"(?:lost connection to the (?:remote )?daemon|remote daemon .* (?:lost|failed)|[Nn]ode .*(?:has )?failed(?:,"
        r"|:| and)|task \d+ .* launch failed)",
        "An ORTE daemon has unexpectedly failed after launch: it lost connection to the remote daemon",
    ),
)

ENVIRONMENT_RULES: tuple[Rule, ...] = (
    root(
        "env-bad-value",
        r"WARN .*(?:Could not open XML (?:topology|graph) file|XML (?:Topology|Graph) has wrong version|XML Parse"
        r"|XML Mismatch|XML Import Channel)",
        "n1:1:2 [0] graph/xml.cc:500 NCCL WARN Could not open XML topology file /etc/topo.xml : No such file or "
        "directory",
    ),
    root(
        "env-bad-value",
        r"WARN .*(?:[Nn]o algorithm/protocol available|Unrecognized (?:element|prefix) token"
        r"|All entries except the first must have a prefix)",
        "n1:1:2 [0] enqueue.cc:1 NCCL WARN Error : no algorithm/protocol available",
    ),
    likely(
        "env-bad-value",
        r"WARN .*(?:Invalid NCCL_\w+|NCCL_\w+\S* (?:value|has invalid|is too|unknown value|is out of range"
        r"|set to a value))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Invalid NCCL_COMM_BLOCKING value 7",
    ),
)

LEFTOVER_RULES: tuple[Rule, ...] = (
    benign(
        r"WARN .*(?:Missing \"?(?:iommu=|amd_iommu)|NUMA auto balancing enabled|HSA_FORCE_FINE_GRAIN_PCIE)",
        'n1:1:2 [0] init.cc:1 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
        "instablity or hang!",
    ),
    benign(
        r"INFO .*\[Service thread\] Connection closed by localRank",
        "n1:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
    ),
    generic(
        "nccl-unknown-error",
        r"NCCL WARN ",
        "n1:1:2 [0] x.cc:1 NCCL WARN Something that no table here knows",
    ),
    generic(
        "nccl-unknown-error",
        r"NCCL DIAG \[?(?:ERROR|FAIL|FATAL|WARN)\w*\]? ",
        "n1:4242 NCCL DIAG [ERROR] GPU 3: ATS is off",
    ),
    generic(
        "nccl-unknown-error",
        r"(?:NCCL error in: |NCCL [Ee]rror:? |[Nn]ccl(?:System|Internal|InvalidUsage|InvalidArgument)(?:Error)?:"
        r"|unhandled system error|"
        r"Test NCCL failure|nccl(?:All|Comm|Group|Reduce|Broadcast|Send|Recv|Get)\w*(?:\(.*\))? failed"
        r"|NcclError|ncclUnhandledSystemError|Failed, NCCL error)",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
    ),
)

RULES = (*VERSION_RULES, *KILLED_RULES, *ENVIRONMENT_RULES, *LEFTOVER_RULES)
