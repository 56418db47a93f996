"""nccl-doctor: cluster preflight and NCCL diagnostics for PyTorch jobs.

How ``nccl-doctor check hosts.yaml`` works:

1. cli/main.py calls cli/check.py, which calls cli/run.py. inventory/load.py reads the hosts file into a ``Cluster``.
2. ``Run`` in collect/run.py executes the phases with a ``Crew`` (crew/crew.py), which starts probe/main.py on each host
   and sends requests (``Contract`` in crew/answers.py).
3. In the facts phase, probe/facts/ collects facts, which collect/facts/host_facts.py parses into ``HostFacts``
   (snapshot/hosts.py).
4. In the mesh phase, all hosts connect to each other (collect/mesh/, probe/mesh/). If several runs test the same hosts,
   the runs take turns (collect/turns.py).
5. In the rate and smoke phases, the hosts exchange data at full speed and run an all-reduce (collect/mesh/rate.py,
   collect/smoke/, probe/smoke/).
6. During the mesh and rate phases, and after the smoke phase, ``Judge.questions`` in judge/diagnose.py returns
   follow-up questions (model/questions.py), whose answers ``Run`` adds to the ``Snapshot``.
7. ``judge`` in judge/diagnose.py runs the checks (checks/CATEGORY/NAME.py, registered by model/register.py) on the
   snapshot. Each check receives a ``View`` (checks/view.py), which includes the data derived by nccl/ and firewall/.
   judge/attribution.py attaches each consequence to its cause.
8. judge/summary.py creates the ``Report`` (model/report.py).
9. cli/output.py prints the report in the requested format with report/render.py and exits with the report's exit code.

``nccl-doctor fix`` first checks the hosts in the same way. act/plan.py then converts the operations of the diagnoses
(model/operations/) into steps, and cli/fix.py asks for confirmation. act/run.py runs the steps and records them with
act/record.py. act/outcome.py compares the follow-up report with the first report.

Glossary:

- cluster: the list of a job's nodes, and the job's master. node: an entry in the list of nodes. host: the machine of a
  node.
- probe: the program that runs on a host while nccl-doctor is connected. The probe leaves nothing behind on the host.
- fact: a typed answer from a host. The fact is ``Unknown(reason)`` if the host could not determine the answer, and
  ``Skipped`` if the answer was not requested.
- phase: a part of a run, namely connect, facts, mesh, rate, or smoke. mesh: the connections of all hosts to each other.
  smoke: the all-reduce test.
- dial: an attempt by one host to connect to another host's listener. crew: the hosts of a run, with the connections to
  the hosts.
- snapshot: all facts and phase results of one run. view: a snapshot, the conclusions from it, and the hosts that one
  check can evaluate.
- check: a pure function that evaluates facts. finding: a fault that was found by a check or in a log. diagnosis: a
  finding with its code and consequences.
- consequence: a finding that another finding explains. gap: the reason why a check could not examine some hosts.
- rule: a pattern for a log line. grade: a rule's strength as evidence. signs: the rules and advice for a diagnosis.
- remedy, fix: advice as prose and commands. operation: a change to one machine, represented as data.
- blame: a host whose firewall rules block connections in one direction. report: the document that every output format
  shows.
"""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["DoctorError", "LogReport", "PreflightError", "Report", "check", "preflight", "read_log"]


def __getattr__(name: str) -> object:
    """Import the public functions on first use, because the command line does not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.api"), name)
