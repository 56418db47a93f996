"""nccl-doctor: cluster preflight and NCCL diagnostics for PyTorch jobs.

How ``nccl-doctor check hosts.yaml`` works:

1. cli/main.py dispatches to cli/check.py, and cli/run.py has inventory/load.py read the hosts file into a ``Cluster``.
2. collect/run.py ``Run`` goes through the phases over one ``Crew`` (crew/crew.py), which starts probe/main.py on each
   host and sends requests (crew/answers.py ``Contract``).
3. facts: probe/facts/ collects facts, which collect/facts/host_facts.py parses into ``HostFacts`` (snapshot/hosts.py).
4. mesh: all hosts connect to each other (collect/mesh/, probe/mesh/). Concurrent runs take turns (collect/turns.py).
5. rate, smoke: hosts exchange data at full speed, then run an all-reduce (collect/mesh/rate.py, collect/smoke/,
   probe/smoke/).
6. After the mesh, rate and smoke phases, judge/diagnose.py ``Judge.questions`` determines what else must be asked
   (model/questions.py), and the phases add the answers to the ``Snapshot``.
7. judge/diagnose.py ``judge`` runs checks/CATEGORY/NAME.py (model/register.py) on the snapshot. Each check gets a
   ``View`` (checks/view.py) that includes what nccl/ and firewall/ derive. judge/attribution.py lists consequences
   below their cause.
8. judge/summary.py makes the ``Report`` (model/report.py).
9. cli/output.py has report/render.py print the report in the requested format, and exits with the report's exit code.

``nccl-doctor fix`` continues from there: act/plan.py turns the diagnoses' operations (model/operations/) into steps,
cli/fix.py asks, act/run.py runs and records them (act/record.py), and act/outcome.py compares the next report with the
first one.

Glossary:

- cluster: the list of a job's nodes, and the job's master; node: an entry in that list; host: the node's machine.
- probe: the program that runs on a host while we are connected. The probe leaves nothing behind on the host.
- fact: a typed answer from a host; ``Unknown(reason)`` if it could not be determined, ``Skipped`` if not requested.
- phase: part of a run: connect, facts, mesh, rate, smoke. mesh: all hosts connect to each other. smoke: the all-reduce.
- dial: an attempt by one host to connect to another's listener. crew: the hosts, with our connections to them.
- snapshot: all facts and phases of one run. view: the part of a snapshot that one check uses.
- check: a pure function that judges facts. finding: its result. diagnosis: a finding with its code and consequences.
- consequence: a finding that another finding explains. gap: hosts that a check could not judge.
- rule: a pattern for a log line. grade: a rule's strength as evidence. signs: the rules and advice for a diagnosis.
- remedy, fix: advice as prose and commands. operation: a command that changes something, represented as data.
- blame: a host's firewall rule that blocks a connection. report: the document that every output format shows.
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["DoctorError", "PreflightError", "Report", "check", "preflight", "read_log"]


def __getattr__(name: str) -> object:
    """Import the public functions only when they are used, since a command line needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.api"), name)
