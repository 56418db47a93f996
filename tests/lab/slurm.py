"""A real Slurm over the hosts of a lab: munged everywhere, slurmctld on the controller, a slurmd on each host."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.requirements import find_tool

CPUS = 4
"""Of each node, whatever this machine has: Slurm hands them out, and nothing binds to them."""

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
MailProg=/bin/true
ReturnToService=2
KillWait=5
TreeWidth=64
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""slurm.conf(5). No accounting, and no control groups, which a container that builds this lab may not make."""


@dataclass(frozen=True)
class Slurm:
    """Slurm that runs; it ends with its lab."""

    lab: Lab

    @classmethod
    def up(cls, lab: Lab, *, gpus: int = 0) -> Slurm:
        """Start it on all hosts of a lab; every node is idle when this returns.

        Args:
            lab: its hosts become the nodes.
            gpus: devices that Slurm takes for GPUs, on each node.
        """
        for tool in ("slurmctld", "munged"):
            find_tool(tool)
        controller = lab.controller
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address} CPUs={CPUS} RealMemory=1000 State=UNKNOWN{gres}"
            for host in lab.hosts
        )
        files = {
            "/etc/slurm/slurm.conf": CONFIGURATION.format(
                controller=controller.name, address=controller.address, nodes=nodes
            ),
            "/etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            "/etc/slurm/gres.conf": f"Name=gpu File=/run/gpu[0-{gpus - 1}]\n" if gpus else "",
        }
        key = secrets.token_hex(64)
        for host in [*lab.hosts, controller]:
            for path, text in files.items():
                host.write(path, text)
            devices = "".join(f"mknod -m 666 /run/gpu{number} c 1 3; " for number in range(gpus))
            host.run(
                f"{devices}install -d -o munge -m 755 /run/munge && install -d -o munge -m 700 /etc/munge /var/log/munge "
                f"/var/lib/munge && printf %s {key} > /etc/munge/munge.key && chown munge /etc/munge/munge.key && "
                "chmod 400 /etc/munge/munge.key && mkdir -p /var/spool/slurmctld /var/spool/slurmd && "
                "setpriv --reuid munge --regid munge --clear-groups munged"
            )
        controller.run("slurmctld")
        for host in lab.hosts:
            host.run(["slurmd", "-N", host.name])
        slurm = cls(lab)
        names = {host.name for host in lab.hosts}
        controller.wait_until(lambda: slurm.idle() == names, "an idle Slurm")
        return slurm

    def idle(self) -> set[str]:
        """The nodes that have nothing to do and answer."""
        return set(self.lab.controller.run("sinfo -h -N -t idle -o '%N %T'; true").stdout.replace(" idle", "").split())

    def restart(self, host: LabHost, by: str = "") -> None:
        """Ends a host's slurmd and starts it, by way of a prefix."""
        end = "pid=$(cat /run/slurmd.pid); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.01; done"
        host.run(f"{end}; {by} slurmd -N {host.name}")

    def answering(self) -> set[str]:
        """The nodes whose slurmd answers its controller now."""
        told = self.lab.controller.run("scontrol -o show node | grep -v NOT_RESPONDING; sleep 0.5")
        alive = {host.name for host in self.lab.hosts if host.run("pgrep -x slurmd", check=False).returncode == 0}
        return {line.split()[0].partition("=")[2] for line in told.stdout.splitlines() if line} & alive

    def allocate(self, *options: str, user: str = "root") -> str:
        """Allocate nodes, all of them by default, and start nothing there; the job's number."""
        nodes = options or (f"-N{len(self.lab.hosts)}",)
        said = self.lab.controller.run(["salloc", "--no-shell", *nodes], user=user).stderr
        return said.split("job allocation ")[1].split()[0]

    def submit(self, script: str, *options: str, user: str = "root") -> str:
        """Run a batch script; its number. It starts on the first node, in the user's home."""
        home = self.lab.controller.environment(user)["HOME"]
        self.lab.controller.write(f"{home}/job.sh", f"#!/bin/bash\n{script}\n", 0o755)
        return self.lab.controller.run(["sbatch", "--parsable", *options, "job.sh"], user=user).stdout.strip()

    def cancel(self, *jobs: str) -> None:
        """End jobs, and wait until their nodes are free."""
        controller = self.lab.controller
        controller.run(["scancel", *jobs])
        controller.wait_until(
            lambda: not controller.run("squeue -h -t all,CG -o %t | grep -vw -e CA -e CD -e F; true").stdout,
            "the end of the jobs",
        )

    def steps(self, job: str) -> list[str]:
        """The steps of a job but the batch script's, as ``squeue`` numbers them."""
        listed = self.lab.controller.run(["squeue", "-h", "-s", "-j", job, "-o", "%i"], check=False).stdout.split()
        return [step for step in listed if not step.endswith((".batch", ".extern"))]
