"""Environment variables that define a rank's place in the job are already set and contradict the planned job.

What it means: RANK, LOCAL_RANK, WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT, or variables of torchrun (PET_) or
Slurm contradict the hosts file. Contradictory variables are left over from an earlier job, exported in a start-up file,
or copied from a guide. torchrun overwrites RANK and similar variables for its ranks, and uses PET_ variables as
defaults for its own options. A script that is started in another way (`env://`, `mp.spawn`, mpirun, srun) uses the
existing values. With wrong values, ranks wait for a master that does not exist, or two ranks have the same number. If
two jobs use the same master address and port, ranks of one job join the other job.

How we know: the planned master, nodes and ranks are compared with the hosts file's env and with the environment of a
command that is run over SSH. On hosts with GPUs or RDMA devices, and on hosts without torch, the environment of a login
shell is also compared. The environment variables of running ranks show whether another job uses the same master.

Fix: remove the variables from the hosts file's env and from start-up files, because the launcher sets them.
`nccl-doctor launch` prints launch commands that contain all necessary settings.

References: torch/distributed/rendezvous.py (env://); torch/distributed/run.py; srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from collections.abc import Collection, Iterator

from nccl_doctor.checks.effects import MASTER
from nccl_doctor.checks.view import Findings, View, check, described, folded
from nccl_doctor.launch.plan import PlannedNode, contradictions, names_of
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.engine import command_way
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot, rank_counts, world_size
from nccl_doctor.snapshot.network import Names, PortTrial
from nccl_doctor.text.hostlist import fold, listed, quoted


@check("NCD804", phrase="variables contradict the job", severity=Severity.WARNING, needs=("env",), explains=(MASTER,))
def job_variable_conflict(view: View) -> Findings:
    places = dict(planned_nodes(view.snapshot))
    conflicts: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for host, facts in view.facts:
        pod = view.kube.pods.get(host.name)
        for source, variables in _sources(host, facts, () if pod is None else pod.variables):
            for name, value, planned in contradictions(variables, places[host.name]):
                line = f"{name}={quoted(value)} {source}, and {planned}"
                conflicts[source == OURS].setdefault(host.name, []).append(line)
    for ours, lines in conflicts.items():
        names = sorted({line.partition("=")[0] for each in lines.values() for line in each})
        where = "under env in the hosts file" if ours else f"on {fold(lines)}"
        remedy = "Take them out of env" if ours else "Unset them where they are set (.bashrc, /etc/environment)"
        if lines:
            yield Finding(
                hosts=tuple(lines),
                message=f"{listed(names)} {where} contradict{'s' * (len(names) == 1)} the planned job.",
                evidence=folded((host, line) for host, each in lines.items() for line in each),
                facts={"variables": names, "in_hosts_file": ours},
                fix=f"{remedy}: the launcher sets them for each rank.",
                severity=Severity.ERROR if ours else None,
            )
    yield from _shared_master(view, places)


OURS = "under env in the hosts file"


def _sources(host: Host, facts: HostFacts, of_pod: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """For each source of environment variables, yield a phrase that describes it and the variables that it sets.

    A host's own variables are omitted if the hosts file or the pod also sets them.
    """
    env = host.node.env
    yield OURS, env
    there = {name: value for name, value in known(facts.env).items() if name not in env and name not in of_pod}
    # this very shell, whose variables set the master unless something else does; so may those of a step
    if host.node.local:
        return
    yield f"in the environment of a command {command_way(host.node)}", there
    login = facts.login_shell
    if login is not None and not isinstance(login, Unknown):
        changes = {name: shell for name, (_, shell) in login.differing.items() if shell is not None and name not in env}
        yield "in a login shell", changes


def planned_nodes(snapshot: Snapshot) -> Iterator[tuple[str, PlannedNode]]:
    ranks, world, first = rank_counts(snapshot), world_size(snapshot), 0
    for host in snapshot.hosts:
        nproc = ranks.get(host.name, host.node.nproc_per_node or 1)
        resolution = host.facts.resolution if host.facts is not None else None
        answer = resolution.get(snapshot.cluster.master_addr) if isinstance(resolution, Names) else None
        resolved = (*snapshot.resolved.get(snapshot.cluster.master_addr, ()), *(answer.addresses if answer else ()))
        masters = names_of(snapshot.cluster, [str(address) for address in resolved])
        yield host.name, PlannedNode(snapshot.cluster, host.node, nproc, first, world, masters)
        first += nproc


def _shared_master(view: View, places: dict[str, PlannedNode]) -> Iterator[Finding]:
    """Yield a finding on running jobs that use the same master as this job, unless port-in-use reports these jobs."""
    snapshot = view.snapshot
    first = snapshot.hosts[0].facts
    if first is None or (isinstance(first.master_port, PortTrial) and not first.master_port.free):
        return
    port = snapshot.cluster.master_port
    jobs: dict[str, list[str]] = {}
    for host, facts in view.facts:
        for job in () if isinstance(facts.processes, Unknown) else facts.processes:
            env = job.env
            same = env.get("MASTER_ADDR") in places[host.name].masters and env.get("MASTER_PORT") == str(port)
            if same and not job.left_behind:
                jobs.setdefault(host.name, []).append(described(job))
    if jobs:
        yield Finding(
            hosts=tuple(jobs),
            message=f"A job that is running on {fold(jobs)} already uses this job's master address and port, "
            f"{snapshot.cluster.master_addr}:{port}.",
            evidence=folded((host, line) for host, each in jobs.items() for line in each),
            facts={"master_addr": snapshot.cluster.master_addr, "master_port": port},
            fix="Give this job another master port (master_port in the hosts file, or --master-port), or "
            "wait for the other job to end.",
        )
