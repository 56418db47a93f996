"""Nodes on this machine with an interpreter of the test's choice."""

from __future__ import annotations

import sys
from pathlib import Path

from nccl_doctor.model.cluster import Node


def node(python: str = sys.executable, name: str = "here", rank: int = 0) -> Node:
    """A node that runs locally."""
    return Node(name=name, address="127.0.0.1", node_rank=rank, python=python, local=True)


def interpreter(folder: Path, script: str) -> str:
    """A program that stands in the place of an interpreter; ``$PYTHON`` in it is the real one."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nPYTHON={sys.executable}\n{script}\n")
    path.chmod(0o755)
    return str(path)
