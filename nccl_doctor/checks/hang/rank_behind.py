"""Some ranks have launched fewer collectives than the other ranks, which are therefore waiting.

What it means: the fault lies with the ranks that are behind. NCCL's own report lists the smaller group of ranks as
outliers. If most ranks are behind, NCCL's outliers are therefore the ranks that are ahead.

How we know: NCCL's RAS service counts the collectives that each rank has launched, and torch's flight recorder lists
these collectives. The numbers of launched collectives differed between ranks. Between two samples, no rank made
progress (according to the flight recorder, the connections and the stacks). The RAS service is queried only once.

Fix: Find out what the lagging ranks are doing. The report shows the lagging ranks' stacks if py-spy was able to read
them. If stacks are missing, run `nccl-doctor hang` again as the job's user, with py-spy installed on the hosts and
ptrace allowed.

References: NCCL's guide, "RAS"; torch/csrc/distributed/c10d/FlightRecorder.cpp.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD713")
