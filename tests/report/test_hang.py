"""The screen of ``nccl-doctor hang``, and its snapshot without what should not travel."""

from __future__ import annotations

from nccl_doctor.judge.hang_report import report
from nccl_doctor.report.human import render_hang as render
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.snapshot.redact import redact
from tests.hang.made_up import IN_LOADER, Job, at


def test_a_rank_in_its_data_loader() -> None:
    assert render(report(Job().stands(3, IN_LOADER).snapshot), RenderOptions()) == (
        "4 hosts, 8 ranks, master node1:29500\n"
        "2 samples, 5 s apart; stacks read without pausing ranks\n"
        "\n"
        "error  NCD712 rank-outside-nccl                                          node2\n"
        "  Rank 3 (node2, pid 1003) is in _next_data at dataset.py:88 while 7 other\n"
        "  ranks wait in a collective.\n"
        "    stack   rank 3: dataset.py:88 < train.py:300\n"
        "    ranks 0-2,4-7 in all_reduce at train.py:212\n"
        "  The rank's data loader returns no batch. Check what the loader's workers\n"
        "  read, and try num_workers=0. The rank was observed for only 5 s and might\n"
        "  still be working; use --interval 30 to observe it for longer.\n"
        "\n"
        "Not available: the flight recorder of ranks 0-7: torch's worker server is\n"
        "  off (TORCH_WORKER_SERVER_SOCKET is not set)\n"
        "Verdict: outside-nccl (6.2 s). The job was not touched.\n"
        "More: nccl-doctor explain NCD712\n"
    )


def test_a_job_that_moves() -> None:
    told = report(Job().stands(0, at(400, "validate")).works(0).snapshot)
    shown = render(told, RenderOptions())
    assert "ranks 1-7 in all_reduce at train.py:212" in shown
    assert "7 ranks wait for rank 0 (node1, pid 1000)" in shown
    assert "Verdict: slow" in shown
    assert render(told, RenderOptions(quiet=True)) == ""


def test_of_a_job_that_is_not_there_nothing_is_said_to_be_left() -> None:
    job = Job()
    job.present = set()
    shown = render(report(job.snapshot), RenderOptions())
    assert "No running job" in shown
    assert "left as it was" not in shown
    assert "not touched" not in shown


def test_each_rank_where_asked() -> None:
    shown = render(report(Job().stands(3, at(17)).snapshot), RenderOptions(verbose=True, width=100))
    assert [line.split()[:4] for line in shown.splitlines() if line.endswith("behind")] == [["3", "node2", "1003", "S"]]


def test_hostile_names_draw_nothing() -> None:
    evil = "\x1b[2J\u202etrain.py"
    frame = [{"function": evil, "file": f"/home/alice/{evil}", "line": 3}]
    shown = render(report(Job().stands(3, frame).snapshot), RenderOptions(verbose=True))
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_what_does_not_travel() -> None:
    snapshot = Job().stands(3, IN_LOADER).snapshot
    kept, done = redact(snapshot)
    text = kept.model_dump_json(by_alias=True)
    assert "alice" not in text
    assert "hf_abc" not in text
    assert str(done)
    assert (report(kept).verdict, report(kept).message) == (report(snapshot).verdict, report(snapshot).message)
