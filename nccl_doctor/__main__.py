"""Runs the command line as ``python -m nccl_doctor``, for use if the ``nccl-doctor`` script is not on PATH."""

from nccl_doctor.cli.main import main

main()
