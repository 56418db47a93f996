from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.nccl.variables import check_value, integer, register, strtoll
from nccl_doctor.nccl.versions import VersionNumbers

libc = ctypes.CDLL(None)
libc.strtoll.restype = ctypes.c_longlong


OLD: VersionNumbers = (2, 31, 2)
NEW: VersionNumbers = (2, 32, 3)


@given(st.text(alphabet="0123456789xXabcfF+- \t", max_size=8).filter(lambda text: "\0" not in text))
def test_numbers_are_read_as_c_reads_them(text: str) -> None:
    number, _ = strtoll(text)
    assert number == libc.strtoll(text.encode(), None, 0)


@pytest.mark.parametrize(
    ("name", "value", "reads"),
    [
        ("NCCL_IB_DISABLE", "true", "reads this value as 0"),
        ("NCCL_BUFFSIZE", "4M", "reads this value as 4"),
        ("NCCL_IB_TIMEOUT", "010x", "reads this value as 8"),
        ("NCCL_IB_TIMEOUT", "77", "is out of range"),
        ("NCCL_BUFFSIZE", "99999999999999999999", "default"),
        ("NCCL_DEBUG", "DEBUG", "ignores this value"),
        ("NCCL_SOCKET_FAMILY", "IPv4", "ignores this value"),
        ("NCCL_P2P_LEVEL", "nvl", "ignores this value"),
        ("NCCL_P2P_LEVEL", "DIS", "ignores this value"),
        ("NCCL_ALGO", "Ring,Star", "'Star'"),
        ("NCCL_IB_HCA", '"mlx5_0"', "quotes"),
        ("NCCL_SOCKET_IFNAME", "e", "single character"),
        ("NCCL_SOCKET_IFNAME", "eth0, eth1", "spaces"),
        ("NCCL_SOCKET_IFNAME", "eth0,=eth1", "'=eth1'"),
        ("NCCL_SOCKET_IFNAME", "=^eth0", "'^eth0'"),
        ("NCCL_SOCKET_IFNAME", ",,", "every interface"),
        ("NCCL_SOCKET_IFNAME", "^=", "no interface"),
        ("NCCL_SOCKET_IFNAME", "'eth0'", "quotes"),
        ("NCCL_SOCKET_IFNAME", ",".join("abcdefghijklmnopq"), "first 16"),
    ],
)
def test_what_nccl_reads_otherwise_than_meant(name: str, value: str, reads: str) -> None:
    bad = check_value(name, value)
    assert bad is not None
    assert reads in bad.reads
    assert ("1 for yes, 0 for no" in bad.allowed) == (value == "true")


@pytest.mark.parametrize("value", ["true", "x", "-"])
def test_from_2_32_on_a_value_without_a_number_is_the_default(value: str) -> None:
    """As libnccl 2.31.2 and 2.32.3 list RDMA devices with such values (scripts/rdma-fuzz)."""
    assert [integer({"NCCL_IB_GID_INDEX": value}, "NCCL_IB_GID_INDEX", -1, of) for of in (OLD, NEW)] == [0, -1]
    assert [integer({"NCCL_IB_GID_INDEX": "3x"}, "NCCL_IB_GID_INDEX", -1, of) for of in (OLD, NEW)] == [3, 3]
    reads = [bad and bad.reads for bad in (check_value("NCCL_IB_DISABLE", value, of) for of in (OLD, NEW))]
    assert reads == ["reads this value as 0", "uses its default"]


@pytest.mark.parametrize(("name", "value"), [("NCCL_ALGO", "Ring,Star"), ("NCCL_PROTO", "^LL256")])
def test_from_2_24_3_on_an_unknown_word_in_a_list_is_fatal(name: str, value: str) -> None:
    """NCCL's parseList (src/graph/tuning.cc) returns ncclInvalidUsage for it; before, it skipped the word."""
    old, new = (check_value(name, value, of) for of in ((2, 23, 4), (2, 24, 3)))
    assert old is not None
    assert new is not None
    assert [old.is_fatal, new.is_fatal] == [False, True]
    assert new.reads.endswith("fails with ncclInvalidUsage")


def test_collnet_is_a_word_up_to_2_13() -> None:
    assert check_value("NCCL_ALGO", "CollNet", (2, 13, 4)) is None
    bad = check_value("NCCL_ALGO", "CollNet", (2, 14, 3))
    assert bad is not None
    assert "CollNet," not in bad.allowed


def test_attn_is_a_level_from_2_31_on() -> None:
    old, new = (check_value("NCCL_DEBUG", "ATTN", of) for of in ((2, 30, 7), (2, 31, 2)))
    assert old is not None
    assert "ATTN" not in old.allowed
    assert new is None
    bad = check_value("NCCL_DEBUG", "DEBUG", (2, 32, 3))
    assert bad is not None
    assert "ATTN" in bad.allowed


@pytest.mark.parametrize("name", ["NCCL_IB_SL", "NCCL_IB_TC"])
def test_from_2_26_on_minus_one_is_the_traffic_class_of_the_communicator(name: str) -> None:
    assert [check_value(name, "-1", of) is None for of in ((2, 25, 1), (2, 26, 2))] == [False, True]
    assert check_value(name, "-3", (2, 26, 2)) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_IB_DISABLE", "1\r"),
        ("NCCL_IB_DISABLE", ""),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_NVLS_ENABLE", "-2"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "2"),
        ("NCCL_ALGO", "^ring,tree"),
        ("NCCL_ALGO", "ring,"),
        ("NCCL_ALGO", "allreduce:tree;allgather:ring"),
        ("NCCL_SOCKET_IFNAME", "^=eth0,lo"),
        ("NCCL_SOCKET_IFNAME", "eth1:1"),
        ("NCCL_OFI_ANYTHING", "true"),
        ("PATH", "x"),
    ],
)
def test_what_is_fine(name: str, value: str) -> None:
    assert check_value(name, value) is None


@given(st.sampled_from(sorted(register())), st.text())
def test_judging_never_raises(name: str, value: str) -> None:
    check_value(name, value)


def test_the_register_knows_nccl() -> None:
    assert len(register()) > 300
    assert register()["NCCL_IB_DISABLE"].type == "int"


def test_names_that_a_version_does_not_know() -> None:
    known = register()
    assert known["NCCL_SOCKET_RETRY_CNT"].absent((2, 23, 4))
    assert known["NCCL_SOCKET_RETRY_CNT"].absent((2, 24, 3)) is None
    assert known["NCCL_TREE_THRESHOLD"].absent((2, 5, 6))
    assert known["NCCL_TREE_THRESHOLD"].absent((2, 4, 8)) is None
    assert known["NCCL_RINGS"].absent((2, 5, 6))


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("TORCH_NCCL_BLOCKING_WAIT", "True", False),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "2", True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", " 600s", False),  # std::stoi reads as far as it can
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ten", True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "3000000000", True),
        ("TORCH_FR_BUFFER_SIZE", "", True),
        ("TORCH_DISTRIBUTED_DEBUG", "info", False),
        ("TORCH_DISTRIBUTED_DEBUG", "1", True),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/tmp/trace_", False),
    ],
)
def test_values_that_torch_refuses(name: str, value: str, *, is_refused: bool) -> None:
    found = check_value(name, value)
    assert (found is not None and found.is_fatal) is is_refused


@pytest.mark.parametrize(
    "name", ["NCCL_BUFFSIZE", "NCCL_IB_TC", "NCCL_IB_DISABLE", "TORCH_FR_BUFFER_SIZE", "NCCL_COMM_ID"]
)
@pytest.mark.parametrize("digits", ["9" * 5_000, "-" + "9" * 5_000, "10.0.0.1:" + "9" * 5_000, "²"])
def test_a_value_of_any_digits_is_judged(name: str, digits: str) -> None:
    found = check_value(name, digits)
    assert found is None or found.reads
