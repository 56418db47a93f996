"""One srun for many nodes: the lines of a real relay, what others make of them, and who is grouped with whom."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory.slurm import request
from nccl_doctor.model.cluster import Cluster, Node, access
from nccl_doctor.probe import relay
from nccl_doctor.probe.relay import CHUNK, PIECE, Relay
from nccl_doctor.transport import make_transport
from nccl_doctor.transport.slurm import SlurmOptions, member
from nccl_doctor.transport.slurm.member import LONGEST, Ended, Ready, Unframer
from nccl_doctor.transport.slurm.steps import SlurmTransport
from nccl_doctor.transport.slurm.tree import GROUP, Group, TreeTransport, parted
from tests.each import each
from tests.patience import LONG_S

MARK = "0123abcd"


@contextmanager
def relayed(*messages: bytes, patience: str = "300") -> Iterator[subprocess.Popen[bytes]]:
    """A real relay, task 3 of its step, to which something was said."""
    argv = [sys.executable, "-I", "-S", relay.__file__, "3", MARK, patience]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        for message in messages:
            process.stdin.write(message)
        process.stdin.flush()
        yield process
        process.kill()


def told(lines: list[bytes]) -> tuple[bytes, list[Ready | Ended]]:
    """The output that lines carry, and the relay's own words."""
    unframer, out, words = Unframer(MARK), b"", []
    for line in lines:
        assert len(line) <= LONGEST
        said = unframer.read(line)
        if isinstance(said, bytes):
            out += said
        elif said is not None:
            words.append(said)
    return out, words


def said(*messages: bytes) -> tuple[bytes, list[Ready | Ended]]:
    with relayed(*messages) as process:
        return told(process.communicate(timeout=LONG_S)[0].split(b"\n")[:-1])


def test_a_relay_brings_a_command_its_input_and_its_output_back() -> None:
    large = bytes(range(256)) * 2000
    messages = (
        member.message(member.EVERY, "keep", large),
        member.message(4, "start", b"echo of another node"),
        member.message(3, "start", b"cat; exit 7"),
        member.message(3, "data", b"ab\n"),
        member.message(4, "data", b"nothing of ours"),
        member.message(3, "use", b"0"),
        member.message(3, "data", b"\0\xffcd"),
        member.message(3, "end"),
    )
    assert said(*messages) == (b"ab\n" + large + b"\0\xffcd", [Ready(), Ended(7)])


def test_an_empty_line_for_all_reaches_those_that_are_awake() -> None:
    start, beat = member.message(3, "start", b"cat"), member.message(member.EVERY, "beat")
    messages = (start, beat, member.message(3, "data", b"a\n"), member.message(4, "wake"), beat)
    assert said(*messages, member.message(3, "wake"), beat, member.message(3, "end")) == (
        b"a\n\n\n",
        [Ready(), Ended(0)],
    )


def test_a_relay_ends_with_its_input_and_the_command_first_in_its_own_way() -> None:
    start = member.message(3, "start", b"trap 'echo never' TERM; cat >/dev/null; echo cleaned up")
    assert said(start) == (b"cleaned up\n", [Ready(), Ended(0)])


def test_a_relay_that_nobody_tells_anything_ends_after_its_patience() -> None:
    with relayed(patience="0.2") as process:
        assert process.stdout is not None
        assert told(process.stdout.read().split(b"\n")[:-1]) == (b"", [Ready()])


def test_a_command_that_does_not_end_is_killed_and_one_that_reads_nothing_stops_nobody() -> None:
    start = member.message(3, "start", b"exec sleep 1000")
    others = [member.message(4, "data", b"x" * 5000)] * 2000
    mine = [member.message(3, "data", bytes(CHUNK))] * 20
    assert said(start, *mine, *others, member.message(3, "kill")) == (b"", [Ready(), Ended(137)])


def lines(data: list[bytes]) -> list[bytes]:
    """What a relay writes of chunks of output."""
    one = Relay("0", MARK, 1.0)
    for chunk in data:
        one.wrap(chunk)
    return one.up.split(b"\n")[:-1]


@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=5))
@settings(max_examples=50)
def test_any_output_comes_back_in_lines_that_srun_keeps_whole(data: list[bytes]) -> None:
    assert told(lines(data)) == (b"".join(data), [])


@given(st.lists(st.binary(min_size=1, max_size=5000), min_size=1, max_size=5), st.data())
@settings(max_examples=50)
def test_a_lost_line_is_noticed(data: list[bytes], draw: st.DataObject) -> None:
    whole = lines([*data, b"last"])
    del whole[draw.draw(st.integers(0, len(whole) - 2))]
    with pytest.raises(ValueError, match="is missing"):
        told(whole)


@given(
    st.lists(
        st.one_of(st.binary(max_size=100), st.binary(max_size=40).map(lambda text: MARK.encode() + b" 0 o " + text))
    )
)
def test_no_line_does_more_than_be_refused(noise: list[bytes]) -> None:
    unframer = Unframer(MARK)
    for line in noise:
        try:
            assert unframer.read(line) is None or line.startswith(MARK.encode())
        except ValueError:
            return


def frame(number: int, kind: str, text: bytes) -> bytes:
    return b"%s %d %s %s" % (MARK.encode(), number, kind.encode(), text)


HOSTILE = {
    "a bomb": [frame(0, "o", base64.b64encode(zlib.compress(bytes(100 << 20), 9))[: 4 << 20])],
    "no end": [frame(number, "p", b"A" * PIECE) for number in range(1000)],
    "no zlib": [frame(0, "o", b"AAAA")],
    "no base64": [frame(0, "o", b"A=A")],
    "cut short": [frame(0, "o", base64.b64encode(zlib.compress(b"word")[:-2]))],
    "twice": [frame(0, "r", b""), frame(0, "r", b"")],
    "no status": [frame(0, "x", b"4711")],
}


@each(HOSTILE, str)
def test_frames_that_no_relay_sends_are_refused(case: str) -> None:
    with pytest.raises(ValueError, match=r"answers|status"):
        told_of_any_length(HOSTILE[case])


def told_of_any_length(hostile: list[bytes]) -> None:
    unframer = Unframer(MARK)
    for line in hostile:
        unframer.read(line)


LABELLED = [
    (b"3: word", (3, b"word")),
    (b" 3: 5: word", (3, b"5: word")),
    (b"63: ", (63, b"")),
    (b"srun: error: node3: task 2: Killed", (None, b"srun: error: node3: task 2: Killed")),
    (b"+3: word", (None, b"+3: word")),
    (b"word", (None, b"word")),
]


@each(LABELLED, lambda case: case[0].decode())
def test_the_sender_is_who_srun_says(case: tuple[bytes, tuple[int | None, bytes]]) -> None:
    assert member.labelled(case[0]) == case[1]


def test_words_of_srun() -> None:
    assert member.launched("srun: launching StepId=1.0 on host node3, 1 tasks: 2") == (2, "node3")
    assert member.launched("srun: launch/slurm: _task_start: Node node1, 1 tasks started") is None
    assert list(member.ended("srun: error: node3: task 2: Exited with exit code 127")) == [2]
    assert list(member.ended("srun: error: node[1-2,4]: tasks 0-1,3: Killed")) == [0, 1, 3]
    assert list(member.ended("srun: launch/slurm: _task_finish: node2: task 1: Completed")) == [1]
    assert list(member.ended("srun: error: tasks 0-999999999999: Killed"))[:2] == [0, 1]
    assert list(member.ended("srun: launching StepId=1.0 on host node3, 1 tasks: 2")) == []


def nodes(count: int, **options: object) -> list[Node]:
    reached = SlurmOptions.model_validate({"job": "7", **options})
    return [Node(name=f"n{i}", address=f"n{i}", node_rank=i, access=access(reached)) for i in range(count)]


def test_groups_are_of_much_the_same_size_and_of_nodes_that_are_entered_alike() -> None:
    assert [len(part) for part in parted(nodes(GROUP + 1))] == [33, 32]
    assert [len(part) for part in parted(nodes(1000))] == [63] * 15 + [55]
    mixed = [*nodes(3), *nodes(2, container_image="pytorch"), *nodes(2, gpus=4)]
    assert [len(part) for part in parted(mixed)] == [3, 2, 2]
    assert [node.name for part in parted(nodes(200)) for node in part] == [f"n{i}" for i in range(200)]


@each(
    [(512, None, SlurmTransport), (513, None, TreeTransport), (2, True, TreeTransport), (513, False, SlurmTransport)],
    str,
)
def test_very_many_nodes_make_a_tree_where_nobody_says_otherwise(case: tuple[int, bool | None, type[object]]) -> None:
    count, tree, kind = case
    cluster = Cluster(nodes=tuple(nodes(count, tree=tree)), master_addr="n0")
    assert type(make_transport("auto", cluster)) is kind


def test_a_tree_without_a_job_is_refused() -> None:
    for environ in ({}, {"SLURM_JOB_ID": "7"}):
        with pytest.raises(UsageError, match="--tree is for a Slurm job's steps"):
            request({"tree": True}, "openssh", environ, named=False)


def test_what_a_second_node_gets_too_goes_to_all_once_and_what_one_gets_to_him_alone(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    group = Group(["/bin/sh", "-c", f"exec cat >{heard}"], {}, ["a", "b"], MARK)
    probe, own = b"the probe" * 1000, b"a node's own" * 1000
    assert [group.keep(data) for data in (probe, own, probe, probe)] == [None, None, 0, 0]
    group.close()
    assert heard.read_bytes() == member.message(member.EVERY, "keep", probe)


def test_a_group_whose_end_another_thread_finds_meanwhile_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(["sleep", "600"], dict(os.environ), ["n0"], MARK)
    process = group._process
    wait = process.wait

    def ended_elsewhere(timeout: float) -> int:
        """It ends, and the thread that ends it reaps it, between a wait in vain and the signal that follows."""
        if process.returncode is None:
            process.kill()
            wait()
            raise subprocess.TimeoutExpired("sleep", timeout)
        return wait(timeout)

    monkeypatch.setattr(process, "wait", ended_elsewhere)
    group.close(0.0)
    group.close(0.0)
    assert process.returncode == -signal.SIGKILL
