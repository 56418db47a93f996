"""Replaces shell variables in a launch command, such as a command from a Slurm script, with their values.

The values of variables that Slurm or the hosts file sets are known before the job starts. Slurm's variables are
described in the "OUTPUT ENVIRONMENT VARIABLES" sections of sbatch(1) and srun(1). Variables that are set elsewhere can
be expanded only by the shell that runs the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_doctor.model.cluster import Cluster
from nccl_doctor.text.shell import Literal

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?::?-[^{}$`]*)?\}|(?P<plain>[A-Za-z_]\w*))")
_OF_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
_OF_PLACE = frozenset({"SLURM_NODEID", "SLURM_PROCID"})
"""Variables that contain the node rank. SLURM_PROCID equals the node rank if each node runs one task."""


def is_of_shell(text: str) -> bool:
    return not isinstance(text, Literal) and ("$" in text or "`" in text)


def filled(text: str, values: Mapping[str, str]) -> str:
    if isinstance(text, Literal):
        return text
    return _VARIABLE.sub(lambda match: values.get(match["braced"] or match["plain"], match[0]), text)


def known_options(
    options: Mapping[str, str], variables: Mapping[str, str], cluster: Cluster
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options with known variables replaced, and (as typed) the options whose values remain unknown.

    The known variables are ``variables``, which are assigned before the command, and the variables that Slurm or the
    hosts file sets.
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
