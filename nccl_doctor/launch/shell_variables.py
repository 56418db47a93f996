"""Replaces shell variables in a launch command, such as one from a Slurm script.

What Slurm and the hosts file set is known before the start. Sources: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES";
srun(1), the same section. Other variables are known only to the shell that runs the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_doctor.model.cluster import Cluster
from nccl_doctor.text.shell import Literal

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?::?-[^{}$`]*)?\}|(?P<plain>[A-Za-z_]\w*))")
_OF_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
_OF_PLACE = frozenset({"SLURM_NODEID", "SLURM_PROCID"})
"""Variables that contain a node's rank. SLURM_PROCID does so if each node has one task, which launchers need."""


def is_of_shell(text: str) -> bool:
    return not isinstance(text, Literal) and ("$" in text or "`" in text)


def filled(text: str, values: Mapping[str, str]) -> str:
    if isinstance(text, Literal):
        return text
    return _VARIABLE.sub(lambda match: values.get(match["braced"] or match["plain"], match[0]), text)


def known_options(
    options: Mapping[str, str], variables: Mapping[str, str], cluster: Cluster
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a line's options with known variables replaced; also, as typed, the options whose value stays unknown.

    The known variables are ``variables``, set before the line, and those that Slurm sets when it starts the line on the
    cluster.
    """
    values = dict.fromkeys(_OF_NODES, str(len(cluster.nodes)))
    values |= {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port)}
    values |= {name: value for name, value in variables.items() if not is_of_shell(value)}
    known: dict[str, str] = {}
    lost: dict[str, str] = {}
    for name, typed in options.items():
        value = filled(typed, values)
        if name == "node_rank" and (match := _VARIABLE.fullmatch(typed)) and {*match.groups()} & _OF_PLACE:
            lost[name] = ""
        elif is_of_shell(value):
            lost[name] = typed
        else:
            known[name] = value
    return known, lost
