"""nccl-doctor: cluster preflight and NCCL diagnostics for PyTorch jobs.

How ``nccl-doctor check hosts.yaml`` works:

1. cli/main.py dispatches to the command; cli/check.py makes a ``Request`` from its options (cli/options.py).
2. cli/run.py ``check_cluster`` has inventory/load.py read the hosts file into a ``Cluster``.
3. collect/run.py ``open_run`` goes through the phases of a ``Run``: connect and facts, mesh, names, rate, smoke. Before
   the mesh it waits until no other run tests the same hosts (collect/turns.py).
4. connect: transport/__init__.py connects to each host; crew/session.py starts probe/main.py there and
   sends requests. Facts follow at once, host by host: probe/facts/ collects them, and collect/facts/host_facts.py
   parses each answer into ``HostFacts`` (snapshot/hosts.py).
5. mesh: collect/mesh/mesh.py has every host listen and connect to the others (probe/mesh/mesh.py). Connections that a
   busy machine may have lost are tried again (collect/mesh/dials.py). Hosts that this machine can't reach are tested
   from their peers (collect/mesh/failed_dials.py). checks/view.py ``FailedDials`` finds the causes of other failures.
   With ``--rate``, collect/mesh/rate.py has the hosts send to each other at full speed (probe/mesh/rate.py).
6. smoke: collect/smoke/allreduce.py runs an all-reduce (probe/smoke/allreduce.py) and records each rank's progress.
7. judge/diagnose.py ``judge`` runs the checks of model/register.py (checks/CATEGORY/NAME.py) on the ``Snapshot``
   (``run_check``). Each check gets a ``View`` (checks/view.py), with what nccl/ and firewall/ derive from the facts.
   ``attach_consequences`` puts consequences below their cause. If an all-reduce hung without a known cause,
   collect/smoke/isolation.py tries smaller groups of hosts, and the result is judged again.
8. judge/summary.py makes the ``Report`` (model/report.py), with the rows of the screen.
9. cli/output.py has report/render.py print it in the requested format, and exits with its exit code.

``nccl-doctor fix`` goes on from there: act/plan.py makes steps of the diagnoses' operations (model/operations/),
cli/fix.py asks, act/run.py runs them with a record (act/record.py), and act/outcome.py compares the next report with
the first one.

Glossary:

- cluster: the nodes of a job and its master; node: an entry of that list; host: the machine that it is on.
- probe: the program that runs on a host while we are connected; it leaves nothing there.
- fact: a typed answer of one host; ``Unknown(reason)`` if it could not be determined, ``Skipped`` if not requested.
- phase: part of a run: connect, facts, mesh, rate, smoke. mesh: all hosts connect to each other. smoke: the all-reduce.
- snapshot: all facts and phases of one run. view: the part of it that one check uses.
- check: a pure function that judges facts. finding: its result. diagnosis: a finding with its code and consequences.
- consequence: a finding that another finding explains. gap: hosts that a check could not judge.
- rule: a pattern for a log line. grade: its certainty. signs: the rules and advice of a diagnosis, in one file.
- remedy, fix: what to do, as prose and commands. operation: a command that changes something, as a value.
- blame: a host's firewall rule that blocks a connection. turn: the right of one run to test a host.
- form: human, JSON, JUnit, Prometheus, HTML. report: the document that every form shows.
"""

__version__ = "0.1.0"
