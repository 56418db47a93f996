"""nccl-doctor: cluster preflight and NCCL diagnostics for PyTorch jobs."""

__version__ = "0.1.0"
