"""Two ranks use the same GPU.

What it means: NCCL needs a separate GPU for each rank of a communicator. Two ranks share a GPU if set_device was not
called, if CUDA_VISIBLE_DEVICES selects the same single GPU for both ranks, or if containers on different hosts report
the same host identity.

How we know: Up to version 2.29, NCCL prints "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000". The
number after "CUDA device" is the PCI bus ID in hexadecimal without punctuation. From version 2.30 on, NCCL prints
"Multiple Ranks are using the same GPU/Partition".

Fix: Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is created. Start no more
processes than there are GPUs, and give each job on a host its own GPUs.

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
