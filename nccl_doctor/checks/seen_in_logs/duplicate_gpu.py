"""Two ranks use the same GPU.

What it means: NCCL wants a GPU for each rank of a communicator. Both took the same one: no set_device, the same
CUDA_VISIBLE_DEVICES, or containers that look like one host.

How we know: NCCL's "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000" (to 2.29; the number is the
PCI bus id in hexadecimal without punctuation) and "Multiple Ranks are using the same GPU/Partition" (2.30 on).

Fix: Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is made, start no more
processes than GPUs, and give jobs on one host GPUs that do not overlap.

References: NCCL's src/init.cc.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD906", explains=("cuda-error",))
