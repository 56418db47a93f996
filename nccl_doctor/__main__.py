"""``python -m nccl_doctor``: the command line, where no script of that name is on PATH."""

from nccl_doctor.cli.main import main

main()
