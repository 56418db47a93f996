"""What is said of launchers that wait for each other before there is a rank."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.hang import rendezvous
from nccl_doctor.judge.hang_report import report
from nccl_doctor.model.documents import HangReport
from nccl_doctor.model.finding import Finding
from nccl_doctor.snapshot.hang import HangSnapshot
from tests.hang.made_up import UNREACHED, Job, idle

STORE = ["10.0.0.1", 29500]


class Start:
    """A static start of four nodes, or how it was changed, as two looks show it."""

    def __init__(self, nodes: int = 4, **asked: str) -> None:
        self.starters: dict[int, dict[str, Any]] = {}
        self.unreached: set[int] = set()
        self.later: dict[str, Any] = {}
        self.gone: set[int] = set()
        self.new: set[int] = set()
        self.leftovers: dict[int, dict[str, str]] = {}
        self.unknown = ""
        for number in range(nodes):
            own = asked or {"node_rank": str(number), "master_addr": "10.0.0.1", "master_port": "29500"}
            self.starters[number] = {
                "pid": 50 + number,
                "state": idle(),
                "program": "torch.distributed.run",
                "age_s": 60,
                "asked": {"nnodes": "4", **own},
                "dials": [[*STORE, "ESTABLISHED"]],
            }

    def asked(self, number: int, **change: str) -> Start:
        self.starters[number]["asked"].update(change)
        return self

    @property
    def snapshot(self) -> HangSnapshot:
        job = Job()
        job.present = set()
        job.failed = {f"node{number + 1}": UNREACHED for number in self.unreached}
        told = job.snapshot.model_dump(mode="json", by_alias=True)
        for number, host in enumerate(told["hosts"]):
            host["looks"] = []
            if number in self.starters and host["job"]:
                some = self._some(number)
                later = [{**one, "state": {**idle(), **self.later}} for one in some]
                host["job"]["starters"] = [] if number in self.new else some
                host["starters"] = [] if number in self.gone else later
        blind = {"$unknown": "no sock_diag", "traceback": None}
        if self.unknown:
            (told["hosts"][3]["job"] if self.unknown == "first" else told["hosts"][3])["starters"] = blind
        return HangSnapshot.model_validate(told)

    def _some(self, number: int) -> list[dict[str, Any]]:
        one = self.starters[number]
        if number not in self.leftovers:
            return [one]
        return [{**one, "pid": 10, "asked": {**one["asked"], **self.leftovers[number]}}, one]

    @property
    def report(self) -> HangReport:
        return report(self.snapshot)

    @property
    def finding(self) -> Finding:
        reason = rendezvous.find_launchers_fault(rendezvous.find_launchers(self.snapshot))
        assert reason is not None
        return reason.finding[1]


def test_a_node_that_was_not_started() -> None:
    told = Start(3).report
    assert (told.verdict, [one.name for one in told.diagnoses]) == ("not-started", ["rendezvous-waits"])
    assert told.message == "torchrun on node[1-3] waits for 4 nodes; none runs on node4."
    assert told.diagnoses[0].hosts == ("node4",)
    assert "--node_rank 3" in told.diagnoses[0].fix.summary


def test_a_node_that_could_not_be_looked_at_may_have_been_started() -> None:
    start = Start(3)
    start.unreached = {3}
    told = start.report
    assert "node4 could not be examined" in told.message
    assert not told.complete


def test_one_host_without_and_one_that_could_not_be_looked_at() -> None:
    start = Start(2)
    start.unreached = {3}
    assert start.finding.message.endswith("; none runs on node3; node4 could not be examined.")


def test_launchers_that_could_not_be_seen_are_said() -> None:
    told = Start(0).snapshot.model_dump(mode="json", by_alias=True)
    told["hosts"][1]["job"]["starters"] = {"$unknown": "no sock_diag", "traceback": None}
    found = report(HangSnapshot.model_validate(told))
    assert (found.verdict, found.not_seen[0]) == ("unknown", "launchers without ranks on node2: no sock_diag")


def test_more_nodes_than_there_are_hosts() -> None:
    start = Start()
    for number in range(4):
        start.asked(number, nnodes="8")
    assert (
        start.finding.message == "torchrun on node[1-4] waits for 8 nodes, and 4 nodes were started on the hosts here."
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("nnodes", "3", "--nnodes is 4 on node[1-3], 3 on node4"),
        ("rdzv_id", "8", "--rdzv_id is none on node[1-3], 8 on node4"),
        ("master_port", "29501", "the port is 29500 on node[1-3], 29501 on node4"),
        ("rdzv_backend", "c10d", "--rdzv_backend is static on node[1-3], c10d on node4"),
        ("rdzv_endpoint", "node1:1234", "the port is 29500 on node[1-3], 1234 on node4"),
    ],
)
def test_nodes_that_can_not_meet(option: str, value: str, words: str) -> None:
    finding = Start().asked(3, **{option: value}).finding
    assert (finding.hosts, words in finding.message) == (("node4",), True)


def test_two_nodes_with_one_number() -> None:
    finding = Start().asked(3, node_rank="2").finding
    assert (finding.hosts, finding.message) == (("node3", "node4"), "node[3-4] all have --node_rank 2.")


def test_without_a_number_every_node_is_the_first() -> None:
    finding = Start(master_addr="10.0.0.1").finding
    assert finding.message == "node[1-4] all have --node_rank 0, the default."
    assert Start(rdzv_backend="c10d", rdzv_endpoint="node1:29500").finding.message.startswith(
        "torchrun on node[1-4] waits"
    )


@pytest.mark.parametrize("dials", [[], [[*STORE, "SYN_SENT"]], [["10.0.0.1", 22, "ESTABLISHED"]]])
def test_a_node_that_does_not_reach_the_store(dials: list[Any]) -> None:
    start = Start()
    start.starters[2]["dials"] = dials
    assert start.finding.hosts == ("node3",)
    assert start.finding.message == "node3 can't reach the nodes' store at 10.0.0.1:29500."


@pytest.mark.parametrize("later", [{"cpu_s": 9.0}, {"wanted_s": {"1": 9.0}}, {"io_bytes": 1 << 30}, {"state": "D"}])
def test_a_launcher_that_works_is_starting(later: dict[str, Any]) -> None:
    start = Start(3)
    start.later = later
    told = start.report
    assert (told.verdict, told.diagnoses) == ("unknown", ())
    assert told.message == "No rank is running yet: torchrun on node1 (pid 50) is starting."


def test_one_node_alone_waits_for_nobody() -> None:
    start = Start(1).asked(0, nnodes="1")
    assert start.report.verdict == "unknown"
    assert "No running job" in start.report.message


@pytest.mark.parametrize("nnodes", ["", "x", "-1", "²", "9" * 50, "2:4"])
def test_any_number_of_nodes(nnodes: str) -> None:
    start = Start(2)
    for number in (0, 1):
        start.asked(number, nnodes=nnodes)
    assert start.finding.message


def test_a_node_that_has_just_started_its_ranks_is_not_absent() -> None:
    start = Start()
    start.gone = {0, 1, 2}
    assert (start.report.verdict, start.report.diagnoses) == ("unknown", ())


def test_a_node_that_was_started_between_the_looks_is_not_absent() -> None:
    start = Start()
    start.new = {3}
    assert start.report.message == "No rank is running yet: torchrun on node4 (pid 53) is starting."


@pytest.mark.parametrize("look", ["first", "last"])
def test_a_host_of_which_the_kernel_tells_nothing_may_have_a_launcher(look: str) -> None:
    start = Start(3)
    start.unknown = look
    assert "node4 could not be examined" in start.report.message


def test_a_host_that_failed_at_the_second_look_may_have_a_launcher() -> None:
    told = Start().snapshot.model_dump(mode="json", by_alias=True)
    told["hosts"][3] |= {"starters": [], "failure": UNREACHED}
    assert report(HangSnapshot.model_validate(told)).message.endswith("node4 could not be examined.")


@pytest.mark.parametrize(("age_s", "verdict"), [(20, "unknown"), (600, "not-started")])
def test_enough_nodes_wait_a_while_for_more(age_s: float, verdict: str) -> None:
    start = Start(2, rdzv_backend="c10d", rdzv_endpoint="node1:29500", nnodes="2:4")
    for one in start.starters.values():
        one["age_s"] = age_s
    assert start.report.verdict == verdict


def test_a_leftover_of_an_earlier_start_at_another_port_is_another_job() -> None:
    start = Start(3)
    start.leftovers = {0: {"master_port": "29501"}}
    assert start.report.message == "torchrun on node[1-3] waits for 4 nodes; none runs on node4."


def test_a_leftover_with_the_same_number() -> None:
    start = Start()
    start.leftovers = {1: {}}
    assert start.finding.message == "2 launchers on node2 have --node_rank 1."


def test_a_store_of_another_kind_is_not_connected_to_all_the_time() -> None:
    start = Start(rdzv_backend="etcd-v2", rdzv_endpoint="node1:29500")
    start.starters[2]["dials"] = []
    assert start.finding.message.startswith("torchrun on node[1-4] waits for the other nodes")
