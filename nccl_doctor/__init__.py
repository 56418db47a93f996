"""nccl-doctor: cluster preflight and NCCL diagnostics for PyTorch jobs.

``nccl-doctor check hosts.yaml``, step by step:

1. cli/main.py hands the words to their command; cli/check.py makes a ``Request`` of its options (cli/options.py, …).
2. cli/run.py ``check_cluster``: the options' ``cluster`` has inventory/load.py read the hosts file into a ``Cluster``.
3. collect/run.py ``open_run`` goes through the phases of a ``Run``: connect and facts, mesh, names, rate, smoke.
4. connect: transport/__init__.py reaches each host, collect/connect/session.py starts probe/main.py there and asks it.
   Facts follow at once, host by host: probe/facts/ looks, and collect/facts/host_facts.py types each answer as
   ``HostFacts`` (snapshot/hosts.py).
5. mesh: collect/mesh/mesh.py has every host listen, and dial the others (probe/mesh/mesh.py). Dials that a busy
   machine may have lost are made again (collect/mesh/dials.py), hosts that this machine can't reach are looked at from
   their peers (collect/mesh/failed_dials.py), and checks/view.py ``FailedDials`` tells why the others failed.
   With ``--rate``, collect/mesh/rate.py then has them send to each other at full speed (probe/mesh/rate.py).
6. smoke: collect/smoke/allreduce.py has an all-reduce run (probe/smoke/allreduce.py) and notes how far each rank came.
7. judge/diagnose.py ``judge`` runs the checks of model/register.py (checks/CATEGORY/NAME.py) over the ``Snapshot``
   (``run_check``); each gets a ``View`` (checks/view.py), with what nccl/ and firewall/ make of the facts;
   ``attach_consequences`` puts what merely follows under its cause. Where an all-reduce hung and nobody is to blame,
   collect/smoke/isolation.py tries smaller groups of hosts, and it is judged again.
8. judge/summary.py makes the ``Report`` (model/report.py) of that, with the screen's rows.
9. cli/output.py has report/render.py print it in the form that was asked for, and leaves with its exit code.

Glossary:

- cluster: the nodes of a job and its master; node: a place in that list; host: the machine it is on.
- probe: the program that runs on a host while we are connected, and leaves nothing there.
- fact: what a host told, typed; ``Unknown`` where nobody could look, ``Skipped`` where nobody was asked to.
- phase: a part of a run: connect, facts, mesh, rate, smoke. mesh: all hosts dial each other. smoke: a small all-reduce.
- snapshot: all facts and phases of one run. view: what one check sees of it.
- check: judges facts, purely. finding: what it yields. diagnosis: a finding with its code and what follows from it.
- consequence: a finding that another one explains. gap: hosts that a check could not judge.
- rule: a wording of a log line. grade: how sure it is. signs: a diagnosis' rules and advice, in one file.
- remedy, fix: what to do, as prose and commands. blame: a host's rule that stops a dial.
- form: human, JSON, JUnit, Prometheus, HTML. report: the document that every form shows.
"""

__version__ = "0.1.0"
