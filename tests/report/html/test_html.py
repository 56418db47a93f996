from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference, HangJob, HangRank, HangReport
from nccl_doctor.model.finding import Details, LogEvent
from nccl_doctor.model.report import FailedDial, HostSummary, MeshReport, RdmaAnswer, Report, SampleReport
from nccl_doctor.report.html.figures import charts, host_table, nets, rails, ring, waterfall
from nccl_doctor.report.html.matrix import matrix
from nccl_doctor.report.html.report import timeline
from nccl_doctor.text.shell import clean, pasteable
from tests.report.html.reading import assert_harmless, html, read
from tests.report.reports import ALL, FIREWALL, healthy, log, one_fault
from tests.report.strategies import REPORTS


def texts(text: str, tag: str) -> list[str]:
    return [" ".join(element.text.split()) for element in read(text) if element.tag == tag]


@pytest.mark.parametrize("name", ALL)
def test_every_report_is_one_file_that_asks_for_nothing(name: str) -> None:
    assert_harmless(html(ALL[name]()))


def test_cause_host_and_commands_come_before_all_else() -> None:
    text = html(one_fault())
    assert texts(text, "h1") == ["1 error on node1"]
    assert texts(text, "h2")[0] == FIREWALL.message
    assert texts(text, "strong")[0] == "node1"
    assert [e.text for e in read(text) if "data-group" in e.attributes] == [
        one.command for one in FIREWALL.fix.commands
    ]


def test_the_pages_of_all_codes_that_are_named_are_inside() -> None:
    elements = read(html(one_fault()))
    linked = {e.attributes["href"][1:] for e in elements if e.attributes.get("href", "").startswith("#page-")}
    assert linked == {"page-NCD301", "page-NCD701"} <= {e.attributes.get("id") for e in elements}


def test_the_head_says_when_who_and_which_version() -> None:
    head = next(text for text in texts(html(healthy()), "p") if "run by" in text)
    assert head == "nccl-doctor check · 2023-11-14 22:13:20 UTC · run by ann on login1 · nccl-doctor 0.1.0"


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS)
def test_whatever_hosts_say_is_text(report: Report) -> None:
    marked = report.model_copy(update={"title": f"</title><script>x()</script>\"onload='{report.title}"})
    text = html(marked)
    assert_harmless(text)
    assert "\u202e" not in text
    shown = {e.text for e in read(text) if "data-group" in e.attributes}
    for found in report.diagnoses:
        lines = {one.command for one in found.fix.commands}
        assert {line for line in shown if line in lines} <= {line for line in lines if pasteable(line)}
    assert (
        clean(marked.title).split() == next(e.text for e in read(text) if e.attributes.get("class") == "title").split()
    )


def cluster(count: int, sample: SampleReport | None = None, failed: tuple[FailedDial, ...] = ()) -> Report:
    names = [f"node{rank:03d}" for rank in range(count)]
    pairs = count * (count - 1)
    return Report(
        command="check",
        status="error" if failed else "ok",
        complete=True,
        hosts=tuple(
            HostSummary(name=name, address=name, node_rank=rank, reached=True) for rank, name in enumerate(names)
        ),
        mesh=MeshReport(
            hosts=count,
            pairs=pairs,
            tested=pairs if sample is None else pairs // 8,
            ports={},
            failed=failed,
            sample=sample,
        ),
    )


def test_every_pair_of_64_hosts_is_a_square_and_says_its_name_and_how_long_it_took() -> None:
    lost = FailedDial(src="node003", dst="node007", address="10.0.0.7", port=29500, outcome="timed-out", seconds=3.001)
    shown = matrix(cluster(64, failed=(lost,)))
    assert shown
    assert (len(shown.rows), len(shown.rows[0].cells)) == (64, 64)
    assert shown.rows[3].cells[7].says == "node003 to node007, port 29500: no answer in time after 3.00 s"
    assert shown.rows[7].cells[3].says == "node007 to node003: all ports reachable"
    assert [(one.kind, one.pairs) for one in shown.legend] == [("open", 64 * 63 - 1), ("silent", 1)]


def test_above_64_neighbours_share_a_square_and_a_failed_pair_still_colours_it() -> None:
    lost = FailedDial(src="node003", dst="node007", address="10.0.0.7", port=29500, outcome="refused")
    shown = matrix(cluster(256, failed=(lost,)))
    assert shown
    assert len(shown.rows) == 64
    assert shown.rows[0].name == "node[000-003]"
    assert shown.rows[0].cells[1].kind == "refused"
    assert shown.rows[0].cells[1].says == (
        "node[000-003] to node[004-007]: 1 of 16 pairs failed; node003 to node007, port 29500: refused"
    )
    assert [(pair.src, pair.dst) for pair in shown.failed] == [("node003", "node007")]


def test_a_sample_looks_sampled() -> None:
    shown = matrix(cluster(128, SampleReport(random_peers=1, distances=(1, 127, 50))))
    assert shown
    cells = {cell.kind for row in shown.rows for cell in row.cells}
    assert cells == {"open", "partly", "untried"}
    assert shown.rows[0].cells[30].kind == "partly"  # the master dials everybody; node001 doesn't
    assert "sample" in shown.caption


def test_a_failed_pair_names_the_diagnosis_of_its_host_and_the_rule() -> None:
    report = one_fault()
    shown = matrix(report)
    assert shown
    assert shown.rows[1].cells[0].says.endswith("(NCD301 firewall-blocks-port)")
    (found,) = report.diagnoses
    ruled = found.model_copy(update={"details": Details(rules={"node1": ("inet filter input: drop",)})})
    ruled_shown = matrix(report.model_copy(update={"diagnoses": (ruled,)}))
    assert ruled_shown
    assert ruled_shown.rows[1].cells[0].says.endswith("(NCD301 firewall-blocks-port: inet filter input: drop)")
    assert [column.name for column in shown.columns if column.blamed] == ["node1"]


def test_hosts_stand_in_the_nets_of_what_nccl_chose_and_a_wrong_one_is_marked() -> None:
    wrong = FIREWALL.model_copy(update={"code": "NCD203", "name": "ifname-needed", "hosts": ("node2",)})
    report = healthy()
    hosts = tuple(
        host.model_copy(update={"network": "172.17.0.0/16" if host.name == "node2" else "10.0.0.0/24"})
        for host in report.hosts
    )
    found = nets(report.model_copy(update={"hosts": hosts, "diagnoses": (wrong,)}))
    assert [(net.name, [one.host for one in net.hosts]) for net in found] == [
        ("10.0.0.0/24", ["node1", "node3", "node4"]),
        ("172.17.0.0/16", ["node2"]),
    ]
    assert found[1].hosts[0].wrong == "NCD203 ifname-needed"


def test_the_ring_goes_by_rank_and_shows_where_it_breaks() -> None:
    drawn = ring(one_fault())
    assert drawn
    assert drawn.words == "node1 -> node2 -> node3 -> node4 -> node1"
    assert [hop.failed for hop in drawn.hops] == [False, False, False, True]


def test_the_ring_that_nccl_took_is_drawn_where_it_told_one() -> None:
    smoke = healthy().smoke
    assert smoke
    ranks = tuple(smoke.ranks[0].model_copy(update={"rank": rank, "host": f"node{rank + 1}"}) for rank in range(4))
    taken = smoke.model_copy(update={"ranks": ranks, "rings": ((0, 2, 1, 3),)})
    drawn = ring(healthy().model_copy(update={"smoke": taken}))
    assert drawn
    assert [stop.label for stop in drawn.stops] == ["node1", "node3", "node2", "node4"]


def with_rdma(count: int, lists: dict[str, list[dict[str, Any]]]) -> Report:
    """Hosts with these devices, by name; the others have two that are in nets of their own."""
    usual = [{"device": f"mlx5_{n}", "place": n, "gid": f"10.{n}.0.9", "network": f"10.{n}.0.0/24"} for n in (0, 1)]
    base = {
        "port": 1,
        "netdev": None,
        "link_layer": "Ethernet",
        "rate_gbps": 100.0,
        "gid_index": 3,
        "gid": None,
        "why": "",
    }
    report = cluster(count)
    hosts = tuple(
        host.model_copy(
            update={"rdma": tuple(RdmaAnswer.model_validate(base | row) for row in lists.get(host.name, usual))}
        )
        for host in report.hosts
    )
    return report.model_copy(update={"hosts": hosts})


def test_rails_join_devices_of_one_place_and_show_which_cannot_talk() -> None:
    lists = {
        "node001": [
            {"device": "mlx5_0", "place": 0, "apart": ("node000", "node002"), "gid": "10.1.0.9"},
            {"device": "mlx5_1", "place": 1, "port": 2, "link_layer": "InfiniBand"},
            {"device": "mlx5_2", "place": 1, "link_layer": "InfiniBand"},
        ],
        "node000": [{"device": "mlx5_0", "place": 0, "apart": ("node001",)}],
    }
    report = with_rdma(3, lists)
    drawn = rails(report)
    assert drawn
    assert [host.label for host in drawn.hosts] == ["node000", "node001", "node002"]
    assert [(stop.label, stop.address) for stop in drawn.stops] == [
        ("mlx5_0", "no GID"),
        ("mlx5_0", "10.1.0.9"),
        ("mlx5_0", "10.0.0.9/24"),
        ("mlx5_1:2 +1", "InfiniBand"),
        ("mlx5_1", "10.1.0.9/24"),
    ]
    assert [(hop.x1 < hop.x2, hop.failed) for hop in drawn.hops] == [(True, True), (True, True), (True, False)]
    assert "[0] of node000 can't reach [0] of node001; [0] of node001 can't reach [0] of node002" in drawn.words
    assert "a red line is a pair" in html(report)


def test_rails_need_two_hosts_with_devices_and_show_those_in_trouble_of_many() -> None:
    assert rails(cluster(3)) is None
    assert rails(with_rdma(2, {"node001": []})) is None
    assert 'class="rails"' not in html(cluster(3))
    lost = {
        "node099": [{"device": "mlx5_0", "apart": ("node040",)}],
        "node040": [{"device": "x", "apart": ("node099",)}],
    }
    drawn = rails(with_rdma(100, lost))
    assert drawn
    assert [host.label for host in drawn.hosts] == [*(f"node00{n}" for n in range(6)), "node040", "node099"]
    assert (drawn.more, [hop.failed for hop in drawn.hops].count(True)) == (92, 1)


def test_the_curves_rise_from_left_to_right_within_their_frames() -> None:
    smoke = healthy().smoke
    assert smoke
    for chart in charts(smoke):
        reference, measured = chart.series
        (x1, y1, _), (x2, y2, says) = measured.points
        assert chart.left == x1 < x2 == chart.right
        assert chart.top <= y2 < y1 <= chart.bottom
        assert says.startswith("64 MiB: ")
        assert reference.kind == "reference"


def test_the_best_of_a_ring_is_cut_where_the_axis_ends_and_its_formula_stands_there() -> None:
    smoke = healthy().smoke
    assert smoke
    small, large = smoke.sizes
    slow = smoke.model_copy(update={"sizes": (small.model_copy(update={"seconds": 0.005, "busbw": 0.0003}), large)})
    (line, _), bottom = charts(slow)[0].series, charts(slow)[0].bottom
    x, y = (float(one) for one in line.path[1:].split("L")[0].split())
    assert (x > charts(slow)[0].left, y) == (True, bottom)
    text = html(healthy())
    assert "T = 2 (N \N{MINUS SIGN} 1) / N · K / B" in " ".join(texts(text, "p"))
    assert any(one.startswith("2 sizes") for one in texts(text, "summary"))


def test_sections_are_linked_and_each_link_has_its_section() -> None:
    elements = read(html(one_fault()))
    links = [
        one.attributes["href"][1:] for one in elements if one.tag == "a" and one.attributes["href"].startswith("#")
    ]
    assert {"checklist", "mesh", "pages"} <= set(links) <= {one.attributes.get("id") for one in elements}


def test_a_host_unlike_most_is_marked() -> None:
    hosts = tuple(
        host.model_copy(update={"seen": {"torch": "2.13.0" if host.name != "node3" else "2.9.1"}})
        for host in healthy().hosts
    )
    table = host_table(healthy().model_copy(update={"hosts": hosts}))
    assert table
    assert [row.name for row in table.rows if row.unusual] == ["node3"]
    assert table.unusual == 1


def test_the_slowest_host_stands_first_and_is_called_slow() -> None:
    hosts = tuple(
        host.model_copy(update={"spent": {"connect": (0.0, 0.2), "probe": (0.2, 5.0 if host.name == "node3" else 0.5)}})
        for host in healthy().hosts
    )
    shown = waterfall(healthy().model_copy(update={"hosts": hosts}))
    assert shown
    assert [(row.host, row.slow) for row in shown.rows][:2] == [("node3", True), ("node1", False)]
    assert shown.rows[0].seconds == ("0.20 s", "4.80 s")
    assert shown.total == "6.2 s"
    assert shown.rows[0].bars[-1].x + shown.rows[0].bars[-1].width == pytest.approx(1000 * 5.0 / 6.2, abs=0.2)
    assert shown.rows[0].rest == "1.20 s"


def event(rank: int, at: int | None, *, cause: bool = False, code: str = "NCD905") -> LogEvent:
    return LogEvent(
        rank=rank,
        host=f"gpu0{rank}",
        order=rank,
        at=at,
        code=code,
        name="peer-died",
        cause=cause,
        file="a.log",
        line=rank + 1,
        text="x",
    )


def test_ranks_that_said_the_same_in_one_second_are_one_moment() -> None:
    told = timeline((event(3, 100, cause=True, code="NCD311"), event(1, 102), event(2, 102)))
    assert told
    assert [(one.who, one.after, one.x, one.cause) for one in told.moments] == [
        ("rank 3 on gpu03", "+0 s", 0.0, True),
        ("rank 1-2 on gpu[01-02]", "+2 s", 1000.0, False),
    ]


def test_lines_without_a_time_stay_in_their_order() -> None:
    told = timeline((event(0, None), event(1, 7)))
    assert told
    assert not told.timed
    assert [one.when for one in told.moments] == ["line 1", "line 2"]


def test_a_log_s_report_shows_its_time_line() -> None:
    text = html(log().model_copy(update={"events": (event(3, 100, cause=True),)}), "logs")
    assert_harmless(text)
    assert "First message of each rank" in texts(text, "h2")


def test_ranks_that_stand_in_one_place_are_counted_together() -> None:
    ranks = tuple(
        HangRank(
            rank=rank,
            host=f"n{rank}",
            pid=7,
            state="S",
            frame="train.py:140 in step",
            called="all_reduce",
            collectives={"0": 7},
        )
        for rank in range(3)
    )
    late = HangRank(rank=3, host="n3", pid=7, state="R", frame="data.py:88 in load", behind=True)
    found = HangReport(
        verdict="outside-nccl",
        complete=True,
        message="Rank 3 stands.",
        job=HangJob(master_addr="n0", master_port=29500, world_size=4),
        ranks=(*ranks, late),
        looks=(),
        diagnoses=(),
        hosts=4,
    )
    text = html(found, "hang")
    assert_harmless(text)
    assert texts(text, "h1") == ["outside the collective"]
    assert "4 hosts, 4 ranks, master n0:29500" in text
    assert "1 host, 4 ranks, master" in html(found.model_copy(update={"hosts": 1}), "hang")
    stands = [one for one in texts(text, "li") if "rank" in one]
    assert stands[0].startswith("rank 0-2 n[0-2] 3 ranks all_reduce at train.py:140 in step collectives issued: 0 7")
    assert stands[1].startswith("rank 3 n3 awaited 1 rank data.py:88 in load")


def test_a_difference_shows_what_came_and_what_went() -> None:
    changed = Change(what="torch.version", before="<b>2.9</b>", after="2.13", hosts=("node1", "node2"))
    text = html(Difference(changes=(changed,), diagnoses=DiagnosisChanges(new=(FIREWALL,))), "diff")
    assert_harmless(text)
    assert texts(text, "h1") == ["Changed"]
    assert texts(text, "tr")[-1] == "node[1-2]torch.version<b>2.9</b>2.13"
