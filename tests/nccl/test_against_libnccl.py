"""The model against the real libnccl of the development requirements: same hosts, same settings, same answers.

Needs a Linux where this user may make namespaces, and a C compiler; fails, never skips, where that is not so.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl.interfaces import Chosen, ChosenInterfaces, choose
from nccl_doctor.nccl.variables import resolve
from nccl_doctor.nccl.versions import parse_version
from nccl_doctor.snapshot.system import ConfigFile
from tests.nccl.ifname_fuzz import SETTINGS_PER_HOST, trials
from tests.nccl.layouts import Layout
from tests.nccl.libnccl import observe
from tests.nccl.rdma_fuzz import trials as rdma_trials

TRIALS = 300
PACKAGE = "nvidia-nccl-cu13"
VERSION = importlib.metadata.version(PACKAGE)

RDMA_TRIALS = 200

CONFIGS = (
    "NCCL_SOCKET_IFNAME==eth1\n",
    "NCCL_SOCKET_IFNAME=eth1",
    "# NCCL_SOCKET_IFNAME=eth1\n",
    " NCCL_SOCKET_IFNAME=eth1\n",
    "NCCL_SOCKET_IFNAME= eth1\n",
    "NCCL_SOCKET_IFNAME=eth1\r\n",
    'NCCL_SOCKET_IFNAME="eth1"\n',
    "\n=x\nnothing\nNCCL_SOCKET_IFNAME=eth1\nNCCL_SOCKET_IFNAME=eth0\n",
    "NCCL_SOCKET_IFNAME=eth1 # ours\n",
    f"NCCL_SOCKET_IFNAME=^{'x' * 1022},eth0\n",
    f"NCCL_SOCKET_IFNAME=^lo,{'x,' * 600}eth0\n",
    "NCCL_SOCKET_FAMILY=AF_INET6\nNCCL_SOCKET_IFNAME=eth\n",
)
TWO_NICS = (
    "link set lo up\n"
    "link add eth0 type bridge\nlink set eth0 addrgenmode none\nlink set eth0 up\naddr add 10.0.0.5/24 dev eth0\n"
    "link add eth1 type veth peer name zz1\nlink set zz1 addrgenmode none\nlink set eth1 addrgenmode none\n"
    "link set zz1 up\nlink set eth1 up\naddr add 10.0.1.5/24 dev eth1\naddr add 2001:db8::5/64 dev eth1 nodad\n"
)


@pytest.fixture(scope="module")
def library() -> Path:
    return Path(str(importlib.metadata.distribution(PACKAGE).locate_file("nvidia/nccl/lib/libnccl.so.2")))


@pytest.mark.slow
def test_random_hosts_and_settings(library: Path) -> None:
    done = trials(library, VERSION, TRIALS, seed=20)
    assert len(done) >= TRIALS
    assert [trial for trial in done if trial.libnccl != trial.model] == []
    # a comparison of nothing but failures would prove little
    chosen = {trial.libnccl.split()[0] for trial in done}
    assert len(chosen) > 10
    assert len({trial.batch for trial in done}) >= TRIALS / SETTINGS_PER_HOST * 0.8


def test_config_files(library: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.conf" for number in range(len(CONFIGS))]
    for path, text in zip(paths, CONFIGS, strict=True):
        path.write_bytes(text.encode())
    settings = tuple({"NCCL_CONF_FILE": str(path)} for path in paths)
    seen = observe(library, [Layout(TWO_NICS, settings)])[0]
    real: list[str | None] = [answer["interface"] for answer in seen.answers]
    model: list[str | None] = []
    for path, text, env in zip(paths, CONFIGS, settings, strict=True):
        variables = resolve({}, env, (ConfigFile(path=str(path), text=text),), parse_version(VERSION))
        assert not isinstance(variables, Unknown)
        values = {name: variable.value for name, variable in variables.items()}
        choice = choose(seen.interfaces, values, parse_version(VERSION))
        assert isinstance(choice, ChosenInterfaces)
        model.append(choice.bootstrap.name if isinstance(choice.bootstrap, Chosen) else None)
    assert real == model
    assert {"eth0", "eth1", None} <= set(real)


@pytest.mark.slow
def test_random_rdma_devices_and_settings(library: Path) -> None:
    """libnccl lists devices and chooses GIDs without a GPU: it is asked by its own functions (tests/nccl/librdma.py)."""
    done = rdma_trials(library, VERSION, RDMA_TRIALS, seed=20)
    assert [trial for trial in done if trial.libnccl != trial.model] == []
    indexes = {index for trial in done for index in trial.libnccl.gids}
    assert len(indexes) > 6
    assert {len(trial.libnccl.nics) for trial in done} >= {0, 1, 2, 3, 4}
