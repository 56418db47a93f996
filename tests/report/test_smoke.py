from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.model.report import AllReduceReport, SizeReport
from nccl_doctor.report.smoke import gradient, smoke
from nccl_doctor.report.text import Screen, painter

SCREEN = Screen(painter(color=False))


def rank(number: int, host: str, **more: Any) -> dict[str, Any]:
    return {"rank": number, "host": host, "local_rank": 0, "stage": "done", "ok": True, **more}


def shown(**result: Any) -> str:
    base = {"backend": "gloo", "reason": "node[1-2] without a GPU", "world_size": 2, "ok": True, "outcome": "ok"}
    allreduce = AllReduceReport.model_validate({**base, "ranks": [], **result})
    return "\n".join("\n".join(block) for block in smoke(allreduce, SCREEN))


def test_gloos_ring_goes_by_rank() -> None:
    ranks = [rank(0, "node1"), rank(1, "node1"), rank(2, "node2")]
    assert shown(ranks=ranks) == (
        "backend  3 ranks, gloo (node[1-2] without a GPU)\nring     node1 (rank 0-1) -> node2 (rank 2) -> node1"
    )


def test_nccls_ring_is_the_one_it_printed() -> None:
    own = {"nccl": "2.27.7", "network": "IB", "interfaces": ["eno1:10.0.0.1"], "transports": {"NET/IB/0/GDRDMA": 2}}
    ranks = [rank(number, f"node{number + 1}", **own) for number in range(3)]
    text = shown(backend="nccl", reason="every rank has a GPU", ranks=ranks, rings=[(0, 2, 1), (0, 1, 2)])
    assert "backend  3 ranks, NCCL 2.27.7 (every rank has a GPU)\n" in text
    assert "uses     NET/IB, eno1 on node[1-3]\n" in text
    assert "ways     NET/IB/0/GDRDMA 6\n" in text
    assert "node1 (rank 0) -> node3 (rank 2) -> node2 (rank 1) -> node1; 1 more ring" in " ".join(text.split())


def test_what_rdmas_counters_grew_by_stands_port_by_port() -> None:
    ranks = [rank(0, "node1"), rank(1, "node2")]
    grown = {"node1": {"mlx5_0:1": {}}, "node2": {"mlx5_0:1": {"np_cnp_sent": 2, "packet_seq_err": 5, "unheard_of": 1}}}
    words = "node2: mlx5_0:1: 5 packets that the other side missed, 2 congestion notices sent"
    assert f"RDMA     {words}" in " ".join(shown(backend="nccl", ranks=ranks, rdma_grown=grown).split("\n         "))
    quiet = shown(backend="nccl", ranks=ranks, rdma_grown={"node1": {"mlx5_0:1": {}}, "node2": {}})
    assert "RDMA     no error counter grew on node[1-2]" in quiet
    many = {"node1": {f"mlx5_{n}:1": {"out_of_buffer": n + 1} for n in range(9)}}
    assert shown(backend="nccl", ranks=ranks, rdma_grown=many).endswith("3 more ports")


def test_nccls_tree_is_the_first_that_it_printed() -> None:
    trees = {
        0: "[0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        1: "[0] 2/3/-1->1->0",
        2: "[0] -1/-1/-1->2->1",
        3: "[0] ->3->1",
    }
    text = shown(backend="nccl", ranks=[rank(number, f"node{number}") for number in range(4)], trees=trees)
    assert "tree     rank 0 <- 1; 1 <- 2-3" in text


def test_a_plugin_stands_beside_the_network_that_is_in_use() -> None:
    own = {"network": "AWS Libfabric", "plugin": "Libfabric (v8)", "interfaces": ["eno1:10.0.0.1"]}
    text = shown(backend="nccl", ranks=[rank(0, "node1", **own), rank(1, "node2", **own)])
    assert "NET/AWS Libfabric (plugin Libfabric (v8) loaded), eno1 on node[1-2]" in " ".join(text.split())


def test_a_long_ring_is_cut_and_no_line_is_too_long() -> None:
    text = shown(ranks=[rank(number, f"gpu{number:03}") for number in range(300)])
    assert "-> 284 more -> gpu299 (rank 299) -> gpu000" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_an_all_reduce_that_failed_has_no_ring() -> None:
    assert "ring" not in shown(ok=False, ranks=[rank(0, "node1"), rank(1, "node2")])


def test_sizes_stand_beside_what_the_link_could_do() -> None:
    sizes = [{"bytes": 1 << 20, "seconds": 0.002, "algbw": 0.524288, "busbw": 0.78, "dtype": "float32"}]
    text = shown(sizes=sizes, link={"host": "node2", "name": "eno1", "gb_per_s": 1.25, "share": 0.624})
    assert "link     780 MB/s of 1.25 GB/s (eno1 on node2): 62%" in text
    assert "1 MiB  2.00 ms  524 MB/s  780 MB/s  1.25 ms" in text
    assert "type" not in text


def test_the_last_column_and_its_sentence_have_one_rate() -> None:
    rates = [0.5 if power != 1 else 1.0 for power in range(12)]
    sizes = [
        {"bytes": 4096 << power, "seconds": (4096 << power) / 1e9 / rate, "algbw": rate, "busbw": rate}
        for power, rate in enumerate(rates)
    ]
    text = shown(sizes=sizes, world_size=2)
    assert "8 KiB 8 µs 1 GB/s 1 GB/s 8 µs" in " ".join(text.split())
    assert "with n = 2 and 1 GB/s." in " ".join(text.split())
    assert "4 KiB 8 µs 500 MB/s 500 MB/s 4 µs" in " ".join(text.split())


def test_two_types_are_told_apart() -> None:
    size = {"bytes": 1 << 20, "seconds": 0.002, "algbw": 0.524288, "busbw": 0.78}
    text = shown(sizes=[{**size, "dtype": "float32"}, {**size, "dtype": "bfloat16"}])
    assert "1 MiB  bfloat16  2.00 ms" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.00596, "6 ms"), (0.0997, "0.1 s"), (0.34799, "0.35 s"), (12.345, "12 s"), (120.4, "120 s")],
)
def test_an_estimate_has_two_digits(seconds: float, words: str) -> None:
    size = SizeReport(bytes=100_000_000, seconds=seconds, algbw=1.0, busbw=1.0)
    assert gradient([size]) == f"A gradient of 100 MB takes about {words}."


def test_few_rows_unless_all_are_asked_for() -> None:
    sizes = [
        {"bytes": 8 << power, "seconds": 0.004, "algbw": (2 << power) / 1e6, "busbw": (8 << power) / 4e6}
        for power in range(24)
    ]
    text = shown(sizes=sizes)
    table = text[text.index("size") :].splitlines()
    assert [row.split("  ")[0] for row in table[1:7]] == ["8 B", "256 B", "4 KiB", "128 KiB", "2 MiB", "64 MiB"]
    assert "0.00" not in text
    assert table[-1] == "A gradient of 100 MB takes about 6 ms."
    result = AllReduceReport.model_validate(
        {"backend": "gloo", "world_size": 2, "ok": True, "outcome": "ok", "ranks": [], "sizes": sizes}
    )
    whole = list(smoke(result, Screen(painter(color=False), verbose=True)))
    assert len(whole[1]) == 25


def test_the_bandwidth_of_the_sizes_is_drawn_from_the_smallest_to_the_largest() -> None:
    sizes = [
        {"bytes": 1 << (10 * power), "seconds": 1.0, "algbw": rate, "busbw": rate}
        for power, rate in enumerate((0.0, 0.5, 1.0))
    ]
    assert "busbw    ▁▅█  1 B to 1 MiB" in shown(sizes=sizes)
    assert "busbw  " not in shown(sizes=sizes[:2]).split("\n\n")[0].split("size")[0]
