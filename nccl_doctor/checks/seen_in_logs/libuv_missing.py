"""The rendezvous store requires libuv, but torch was built without libuv.

What it means: Since torch 2.4, the rendezvous store uses libuv by default. Builds of torch for Windows and some custom
builds lack libuv.

How we know: The log contains "use_libuv was requested but PyTorch was built without libuv support".

Fix: Install a build of torch with libuv. If the ranks are started without torchrun, USE_LIBUV=0 or the
`env://?use_libuv=0` init method also works. torchrun ignores both (as of torch 2.13).

References: torch/distributed/rendezvous.py and elastic/rendezvous/c10d_rendezvous_backend.py;
torch/csrc/distributed/c10d/TCPStore.cpp.
"""

from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD922", explains=("rendezvous-timeout", "connection-refused", "script-failed", "peer-died"))

ADVICE = make_advice(
    "The torch of {who} was built without libuv, which its rendezvous store (TCPStore) needs.",
    "Install a build of torch with libuv. If the ranks are started without torchrun (python, srun, mpirun), it also "
    "helps to set USE_LIBUV=0 on every host before starting the job. torchrun ignores USE_LIBUV (as of torch 2.13).",
    command=None,
)

RULES = (
    root(
        r"built without libuv|use_libuv was requested|libuv (?:support )?(?:is )?not (?:available|supported|found)",
        "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, run "
        "with USE_LIBUV=0 to disable it.",
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
