"""Two ranks use the same GPU.

What it means: NCCL needs a separate GPU for each rank of a communicator. Two ranks got the same one, because set_device
was not called, because they have the same CUDA_VISIBLE_DEVICES, or because containers of different hosts report the
same host identity.

How we know: NCCL's "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000" (up to 2.29; the number is
the PCI bus id in hexadecimal without punctuation) and "Multiple Ranks are using the same GPU/Partition" (from 2.30 on).

Fix: Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is created, start no more
processes than there are GPUs, and give jobs on one host GPUs that do not overlap.

References: NCCL's src/init.cc.
"""

from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD906", explains=("cuda-error",))

ADVICE = make_advice(
    "Two ranks use the same GPU, according to {who}.",
    'Give each process its own GPU: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else, and no '
    "overlapping CUDA_VISIBLE_DEVICES. Containers with the same hostname and boot ID look alike to NCCL, too.",
)

RULES = (
    root(
        r"(?:Duplicate GPU detected ?: rank (?P<rank>\d+)|Multiple [Rr]anks (?:are|detected) using the same GPU)",
        "n1:1:2 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000",
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
