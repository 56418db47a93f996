"""Some ranks have launched fewer collectives than the others, which are waiting for them.

What it means: these ranks are the ones to look at, although NCCL's own report lists the ranks that are ahead as
outliers.

How we know: NCCL's RAS service counts the collectives that each rank has launched, and torch's flight recorder lists
them; the counts differed between ranks, and did not change from one sample to the next.

Fix: See what these ranks are doing: their stacks are shown if they could be read. If not, run the command again as the
job's user, with py-spy on the hosts and ptrace allowed.

References: NCCL's guide, "RAS"; torch/csrc/distributed/c10d/FlightRecorder.cpp.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD713")
