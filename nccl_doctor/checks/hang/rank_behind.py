"""Some ranks have launched fewer collectives than the others, which wait for them.

What it means: these ranks are the ones to look at, although NCCL's own report lists those ahead as outliers.

How we know: NCCL's RAS service counts the collectives that each rank has launched, and torch's flight recorder lists
them; in two samples the counts did not change and differed.

Fix: See what these ranks do: their stacks are shown if they could be read. Otherwise run again as the job's user, with
py-spy on the hosts and ptrace allowed.

References: NCCL's guide, "RAS"; torch/csrc/distributed/c10d/FlightRecorder.cpp.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD713")
