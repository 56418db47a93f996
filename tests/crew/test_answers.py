"""What the probe never says, said: by a channel that lies, and by a real probe behind one that changes its answers."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_doctor.collect.facts.host_facts import typed
from nccl_doctor.collect.mesh.dials import dial_targets, open_listeners
from nccl_doctor.collect.mesh.plan import DialTarget, listeners, own_nonce
from nccl_doctor.collect.smoke.allreduce import MOST_EVENTS, AllReduceRun
from nccl_doctor.collect.smoke.plan import SmokeLimits, SmokePlan
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import ConnectionLostError, MalformedError, NoAnswerError, ProbeError
from nccl_doctor.crew.session import MAX_REQUEST
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot.access import AccessFailure
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.transport.base import AccessError
from tests.checks.snapshots import healthy, patched
from tests.crew.liars import HELLO, Liar, lying, opened

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CALM = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refused(liar: Liar) -> AccessFailure:
    with pytest.raises(AccessError) as caught:
        opened(liar)
    assert liar.closed
    return caught.value.failure


class Silent(Liar):
    """A host whose login shell comes to our line, and whose interpreter says nothing."""

    def __init__(self) -> None:
        super().__init__(lambda _request: [])
        self.deadlines: list[float] = []

    def open(self, _node: Node, command: str, _deadline: float, _latest: float = math.inf) -> Liar:
        self._lines = [b"a prompt " + command.partition(";")[0].removeprefix("echo ").encode()]
        return self

    def read_line(self, deadline: float) -> bytes | None:
        self.deadlines.append(deadline)
        return super().read_line(deadline)


def test_a_slow_login_is_waited_for_and_a_silent_interpreter_has_its_own_bound() -> None:
    host = Silent()
    assert refused(host).facts.ran_out_of_time
    at_login, at_interpreter = host.deadlines
    assert at_login - at_interpreter == pytest.approx(10.0, abs=2.0)  # of 15 s and 5 s, less what the reading took


@pytest.mark.parametrize(
    "hello",
    [
        {}, [], None, 1, {"hello": None}, {"hello": {}}, {"hello": []}, {"refused": [1]},
        {"hello": HELLO["hello"] | {"python": "3.11;"}}, {"hello": HELLO["hello"] | {"pid": -1}},
        b"NONCE " + b"[" * 100_000 + b"]" * 100_000, b"NONCE [[]]", b"NONCE",
    ],
)  # fmt: skip
def test_a_greeting_that_is_none_is_that_hosts_failure_and_leaves_no_channel_open(hello: Any) -> None:
    failure = refused(Liar(lambda _request: [], hello))
    assert failure.kind == "probe-failed"
    assert "it answered what the probe never says" in failure.detail


def test_a_login_may_say_much_before_the_probe_but_not_without_end() -> None:
    chatter = (b"Welcome to the cluster. " * 1000,)
    opened(Liar(lambda _request: [], before=chatter * 100))
    assert "far more than was asked for" in refused(Liar(lambda _request: [], before=chatter * 1000)).detail


@pytest.mark.parametrize(
    "said",
    [
        {"id": 1}, {"id": "1", "ok": 1.0}, {"id": True, "ok": 1.0}, {"id": None, "ok": 1.0}, {"id": [1], "ok": 1.0},
        {"id": 2, "ok": 1.0}, {"id": 0, "ok": 1.0}, {"id": -1, "ok": 1.0}, {"id": 1, "error": 5}, {"id": 1, "error": None},
        {"id": 1, "error": "x", "traceback": [1]}, {"id": 1, "event": {}}, {"id": 1, "ok": "now"}, {"id": 1, "ok": None},
        {"id": 1, "ok": {}}, b"NONCE", b"NONCE 1", b"NONCE [1]", b"NONCE {\"id\": 1, \"ok\": 1", b"NONCE \xff",
        b'NONCE {"id": 1, "ok": NaN}', b'NONCE {"id": 1, "ok": 1e999}', b'NONCE {"id": 1, "ok": "\\ud800"}',
        b'NONCE {"id": 1, "ok": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'NONCE {"id": 1, "ok": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_the_probe_never_says_ends_the_session_and_is_said(said: bytes | dict[str, Any]) -> None:
    session = lying(said)
    for _ in range(2):
        with pytest.raises(MalformedError, match="it answered what the probe never says"):
            session.ask(answers.CLOCK, time.monotonic() + 5)
    assert session.lost is not None


@pytest.mark.parametrize("value", [b"[],", b'"",', b'"\\"",'])
def test_a_line_of_empty_values_is_refused_before_it_takes_memory(value: bytes) -> None:
    line = b'{"id": 1, "ok": [' + value * ((8 << 20) // len(value)) + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="more than 150000 values"):
            answers.parsed(line)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(line)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", [b'"]}', b"", b"\\"])
def test_what_stands_in_texts_is_no_value(end: bytes) -> None:
    """Not even where it looks like the end of one, or never ends."""
    line = b'{"ok": ["' + b'\\",[\\\\' * answers.MAX_ITEMS + end
    if end == b'"]}':
        assert len(answers.parsed(line)["ok"][0]) == 4 * answers.MAX_ITEMS
    else:
        with pytest.raises(MalformedError, match="damaged JSON"):
            answers.parsed(line)


@CALM
@given(JSON)
def test_whatever_json_comes_is_an_answer_or_ends_this_session(value: Any) -> None:
    for kind in (answers.LISTEN, answers.DIAL, answers.PATH_MTU, answers.SMOKE, answers.CLOCK, answers.FACTS):
        session = lying({"id": 1, "ok": value})
        with contextlib.suppress(ConnectionLostError):  # and nothing else
            kind.answer.validate_python(session.ask(kind, time.monotonic() + 5))  # type: ignore[misc]  # of any kind
            assert session.lost is None
            continue
        assert session.lost is not None


def test_a_flood_of_chatter_or_events_ends() -> None:
    megabyte = b"x" * (1 << 20)
    with pytest.raises(MalformedError, match="far more than was asked for"):
        lying(*[megabyte] * (MAX_REQUEST // len(megabyte) + 1)).ask(answers.CLOCK, time.monotonic() + 5)


def test_an_answer_to_an_earlier_request_is_kept_once() -> None:
    session = opened(Liar(lambda request: [{"id": 1, "ok": 1.5}] * 2 if request["id"] == 2 else []))
    with pytest.raises(NoAnswerError):
        session.ask(answers.CLOCK, time.monotonic() + 5)
    with pytest.raises(MalformedError):
        session.wait(answers.CLOCK, session.send(answers.CLOCK, time.monotonic() + 5), time.monotonic() + 5)


def test_what_is_asked_again_is_waited_for_and_not_sent_again() -> None:
    asked: list[Any] = []
    session = opened(Liar(lambda request: asked.append(request) or []))  # type: ignore[func-returns-value]
    for _ in range(2):
        with pytest.raises(NoAnswerError):
            session.ask(answers.CLOCK, time.monotonic() + 5)
    assert [request["do"] for request in asked].count("clock") == 1


def test_an_error_of_the_probe_is_no_lie() -> None:
    session = lying({"id": 1, "error": "KeyError: 'names'", "traceback": "Traceback"})
    with pytest.raises(ProbeError, match="KeyError") as caught:
        session.ask(answers.CLOCK, time.monotonic() + 5)
    assert caught.value.traceback == "Traceback"
    assert session.lost is None


LATIN_1 = """
from nccl_doctor.probe.main import Server
Server("nonce", 60, 60, str).send({"event": {"local_rank": 0, "error": "no file /data/caf\\udce9.bin"}})
"""


def test_what_is_no_utf_8_makes_no_liar_of_an_honest_host() -> None:
    done = subprocess.run([sys.executable, "-c", LATIN_1], capture_output=True, check=True)
    message = answers.parsed(done.stdout.strip().removeprefix(b"nonce "))
    assert answers.RANK_EVENT.validate_python(message["event"]).error == "no file /data/caf?.bin"


FACTS: dict[str, Any] = healthy()["hosts"][0]["facts"]


@CALM
@given(st.dictionaries(st.sampled_from(sorted(HostFacts.model_fields)), JSON, max_size=2))
def test_a_malformed_fact_is_unknown_and_the_others_stand(lies: dict[str, Any]) -> None:
    facts = typed(FACTS | lies)
    whole = typed(FACTS)
    for field in HostFacts.model_fields.keys() - {"misfits"}:
        assert field in lies or getattr(facts, field) == getattr(whole, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("routes", [{**FACTS["routes"][0], "destination": ""}]),
        ("port_range", {"low": 32768, "high": 60999, "reserved": "0-30000000"}),
        ("torch", FACTS["torch"] | {"version": "2.²"}),
        ("identity", FACTS["identity"] | {"hostname": "\ud800"}),
        ("gpus", {"$unknown": 5}),
        ("sockets", [1] * 1000),
        ("limits", None),
    ],
)
def test_it_says_what_does_not_fit(field: str, value: Any) -> None:
    told = getattr(typed(FACTS | {field: value}), field)
    assert isinstance(told, Unknown)
    assert told.reason.startswith(f"malformed: {field}")


def test_an_item_of_anybody_s_that_does_not_fit_is_counted_and_the_others_stand() -> None:
    good: dict[str, Any] = {"remote_address": None, "remote_port": None, "state": "LISTEN", "pid": None}
    good |= {"local_address": "10.0.0.1", "local_port": 22}
    told = typed(FACTS | {"sockets": [good, {**good, "local_port": 70000}]})
    assert len(known(told.sockets)) == 1
    assert told.misfits["sockets"].startswith("1 of 2 left out: 1.")


def test_facts_that_are_missing_are_unknown_and_facts_that_are_none_of_ours_are_refused() -> None:
    told = typed({name: value for name, value in FACTS.items() if name != "shm"})
    assert isinstance(told.shm, Unknown)
    with pytest.raises(MalformedError):
        typed(FACTS | {"more": 1})


def test_ports_that_were_not_asked_for_are_not_dialled() -> None:
    snapshot = patched({})
    facts = snapshot.hosts[1].facts
    assert facts is not None
    sockets = listeners(facts, None, own_nonce("n", "here"))
    wanted = [one["port"] for one in sockets]

    def listened(*ports: Any) -> Any:
        session = lying({"id": 1, "ok": {"ports": list(ports), "errors": {}}})
        return open_listeners(session, "n", sockets).ports

    assert listened(*wanted) == tuple(wanted)
    assert listened(wanted[0] + 15, wanted[1] - 15, None) == (wanted[0] + 15, wanted[1] - 15, None)
    for ports in ([22, *wanted[1:]], wanted[:2], [*wanted, 80], [wanted[0] + 16, *wanted[1:]], [0, 0, 0], []):
        with pytest.raises(MalformedError):
            listened(*ports)


@pytest.mark.parametrize(
    ("connected", "failed"),
    [
        (0, []), (2, []), (0, [[0, 81, "refused", None, 0.1]]), (0, [[1, 80, "refused", None, 0.1]]), (0, [[0, 80, "lied", None, 0.1]]),
        (-1, [[0, 80, "refused", None, 0.1]] * 2), (0, 5), (0, [5]), (0, [[0, 80, "refused", None]]), (0, [[-1, 80, "refused", None, 0.1]]),
    ],
)  # fmt: skip
def test_dials_that_were_not_asked_for_are_not_believed(connected: int, failed: Any) -> None:
    session = lying({"id": 1, "ok": {"connected": connected, "failed": failed}})
    with pytest.raises(MalformedError):
        dial_targets(session, [DialTarget("b", "10.0.0.2", (80,))], "n", 1.0)


PLAN = SmokePlan(patched({}).cluster, SmokeLimits(), {"node1": 1, "node2": 1, "node3": 1}, "gloo", "no GPU")


@pytest.mark.parametrize(
    "event",
    [
        {"local_rank": 1, "stage": "done"},
        {"local_rank": 0, "wrong_group": [0, 2]},
        {"local_rank": 0, "wrong_group": [1, 3]},
        {"local_rank": 0, "size": {"bytes": 8, "seconds": 1, "algbw": 1, "busbw": 1}},
    ],
)
def test_a_rank_counts_only_from_the_host_on_which_it_was_placed(event: dict[str, Any]) -> None:
    all_reduce = AllReduceRun(PLAN, time.monotonic() + 60)
    with pytest.raises(MalformedError):
        all_reduce.event("node2", answers.RANK_EVENT.validate_python(event))
    assert (all_reduce.sizes, all_reduce.wrong_groups, {rank.stage for rank in all_reduce.ranks}) == (
        [],
        set(),
        {"none"},
    )


def test_reports_without_end_are_refused() -> None:
    all_reduce = AllReduceRun(PLAN, time.monotonic() + 60)
    event = answers.RANK_EVENT.validate_python({"local_rank": 0, "stage": "torch", "since": 1.0})
    for _ in range(MOST_EVENTS):
        all_reduce.event("node2", event)
    with pytest.raises(MalformedError):
        all_reduce.event("node2", event)


@pytest.mark.parametrize(
    "event", [{"local_rank": -1, "error": "x"}, {"local_rank": 0, "stage": "more"}, {"ready": True}]
)
def test_what_no_rank_reports(event: dict[str, Any]) -> None:
    session = lying({"id": 1, "event": event})
    with pytest.raises(MalformedError):
        session.wait(answers.SMOKE, session.send(answers.SMOKE, 0.0), time.monotonic() + 5, lambda _event: None)


def test_each_contract_has_its_handler_and_each_handler_its_contract() -> None:
    from nccl_doctor.act.ports import fleet
    from nccl_doctor.collect.hang import hang, probe_answers
    from nccl_doctor.probe import main

    modules = (answers, hang, probe_answers, fleet)
    contracts = {one.name for module in modules for one in vars(module).values() if isinstance(one, answers.Contract)}
    assert contracts == {*main.REQUESTS, "stop"}
    for path in main.REQUESTS.values():
        owner, _, method = path.partition(".")
        assert callable(getattr(main._named(owner), method) if method else main._named(owner))
