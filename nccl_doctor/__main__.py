"""Runs the command line as ``python -m nccl_doctor``, in case the script is not on PATH."""

from nccl_doctor.cli.main import main

main()
