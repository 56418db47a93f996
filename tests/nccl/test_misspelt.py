from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nccl_doctor.nccl.misspelt import GLOO_NAMES, Meant, advice, is_known, meant, reader
from nccl_doctor.nccl.variables import BUILD_NAMES, PYTORCH_NAMES, TORCH_NAMES, register

KNOWN = sorted([*register(), *TORCH_NAMES, *GLOO_NAMES])

MEANT = {
    "NCCL_SOCKET_IFNAMES": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_NAME": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_IF_NAME": "NCCL_SOCKET_IFNAME",
    "NCCL_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLED": "NCCL_IB_DISABLE",
    "NCCL_DISABLE_P2P": "NCCL_P2P_DISABLE",
    "NCCL_HCA": "NCCL_IB_HCA",
    "NCCL_GID_INDEX": "NCCL_IB_GID_INDEX",
    "NCCL_IB_RETRY_COUNT": "NCCL_IB_RETRY_CNT",
    "NCCL_BUFFER_SIZE": "NCCL_BUFFSIZE",
    "NCCL_CROSSNIC": "NCCL_CROSS_NIC",
    "NCCL_ALGORITHM": "NCCL_ALGO",
    "NCCL_LOG_LEVEL": "NCCL_DEBUG",
    "NCLL_DEBUG": "NCCL_DEBUG",
    "nccl_debug": "NCCL_DEBUG",
    "NCCL_DEBUG ": "NCCL_DEBUG",
    "export NCCL_DEBUG": "NCCL_DEBUG",
    "TORCH_NCCL_DEBUG": "NCCL_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANLDING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_ASYNC_ERR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCLL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "TORH_NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_HEARTBEAT_TIMEOUT_SEC": "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "NCCL_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_TRACE_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "GLOO_IFNAME": "GLOO_SOCKET_IFNAME",
}
OPPOSITE = {
    "NCCL_IB_ENABLE": "NCCL_IB_DISABLE",
    "NCCL_P2P_ENABLED": "NCCL_P2P_DISABLE",
    "NCCL_NVLS_DISABLE": "NCCL_NVLS_ENABLE",
}
# a similar name of another meaning is none
NOTHING = (
    *("NCCL_TIMEOUT", "NCCL_SOCKET_TIMEOUT", "TORCH_NCCL_TIMEOUT", "NCCL_PORT", "NCCL_PORT_RANGE", "NCCL_HOST"),
    *("NCCL_TREE", "NCCL_LL", "NCCL_RETRY_CNT", "NCCL_NVLINK_DISABLE", "TORCH_NCCL_UNHEARD_OF"),
)


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant(name: str) -> None:
    assert not is_known(name)
    assert meant(name) == Meant(MEANT[name])


@pytest.mark.parametrize("name", OPPOSITE)
def test_a_name_of_the_opposite_sense(name: str) -> None:
    assert meant(name) == Meant(OPPOSITE[name], opposite=True)


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_close(name: str) -> None:
    assert meant(name) is None


@pytest.mark.parametrize(
    "name",
    [*KNOWN, *PYTORCH_NAMES, *BUILD_NAMES, "NCCL_OFI_X", "NCCL_SHIMNET_X", "TORCH_X", "GLOO", "NCCL_", "PATH", ""],
)
def test_what_is_known_or_of_somebody_else(name: str) -> None:
    assert is_known(name)


def test_settings_for_which_there_is_no_variable() -> None:
    assert "init_process_group(timeout=...)" in (advice("NCCL_TIMEOUT") or "")
    assert "MASTER_PORT" in (advice("NCCL_PORT_RANGE") or "")
    assert advice("NCCL_UNHEARD_OF") is advice("GLOO_TIMEOUT") is None


@given(st.sampled_from(KNOWN), st.data())
def test_a_letter_too_few_or_too_many_or_two_swapped(name: str, data: st.DataObject) -> None:
    """Two names in 300 are so alike that a slip makes one of the other."""
    first = len("TORCH_NCCL_") if name.startswith("TORCH_NCCL_") else name.index("_") + 1
    at = data.draw(st.integers(first, len(name) - 2))
    kind = data.draw(st.sampled_from(["gone", "twice", "swapped"]))
    middle = {"gone": "", "twice": 2 * name[at], "swapped": name[at + 1] + name[at]}[kind]
    slip = name[:at] + middle + name[at + 1 + (kind == "swapped") :]
    if not is_known(slip) and (found := meant(slip)) is not None:
        assert found.name == name or {name, found.name} in (
            {"NCCL_THREAD_THRESHOLDS", "NCCL_THREAD_THRESHOLD"},
            {"NCCL_WIN_ENABLE", "NCCL_GIN_ENABLE"},
        )


@given(st.text())
@example("NCCL_" + 500 * "A_")
@example("NCCL_" + 1000 * "A")
def test_any_text_has_an_answer(name: str) -> None:
    if reader(name) is None:
        assert is_known(name)
    found = meant(name)
    assert found is None or found.name in KNOWN
    assert advice(name) is None or "TIMEOUT" in name.upper() or "PORT" in name.upper()
