"""What a way of reaching hosts brings along, without a change elsewhere: its options of a node and its failures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
from pydantic import ValidationError

from nccl_doctor.inventory.load import load
from nccl_doctor.model import engine as register
from nccl_doctor.model.cluster import Cluster, Node, access
from nccl_doctor.model.engines.base import Engine, TransportKind
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.snapshot.access import (
    EngineFacts,
    EngineFailure,
    ProbeFacts,
    ProbeFailed,
    SshUnreachable,
    UnreachableFacts,
)
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.transport import TRANSPORTS, make_transport
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from nccl_doctor.transport.ssh.choice import ChoosingTransport


@dataclass(frozen=True)
class PodOptions:
    engine: ClassVar[str] = "kube"

    container: str = ""
    namespace: str = "default"


NODE = Node(name="n", address="n", node_rank=0, access=access(SshOptions(port=2222), PodOptions(container="train")))


def test_each_engine_reads_its_own_options() -> None:
    again = Node.model_validate_json(NODE.model_dump_json())
    assert again.options(SshOptions) == SshOptions(port=2222)
    assert again.options(PodOptions) == PodOptions(container="train")


def test_options_that_say_nothing_are_left_out() -> None:
    assert access(SshOptions(), PodOptions()) == {}


FACTS = UnreachableFacts(target="n", address="10.0.0.1", port=22, user="ann", reason="refused")


@pytest.mark.parametrize(
    "failure",
    [
        SshUnreachable(detail="refused", facts=FACTS),
        ProbeFailed(detail="ended", facts=ProbeFacts(stage="start")),
        EngineFailure(
            kind="pod-not-ready", detail="is pending", remedy="Wait for it.", facts=EngineFacts(pod="train-0")
        ),
    ],
)
def test_failures_keep_their_type_in_a_snapshot(failure: SshUnreachable | ProbeFailed | EngineFailure) -> None:
    assert Host.model_validate_json(Host(node=NODE, failure=failure).model_dump_json()).failure == failure


def test_an_engine_has_no_failure_under_the_name_of_another_kind() -> None:
    with pytest.raises(ValidationError, match="ssh-unreachable has facts of its own type"):
        EngineFailure(kind="ssh-unreachable", detail="is pending", remedy="Wait for it.")


@pytest.mark.parametrize(
    ("kind", "local", "wanted"),
    [
        ("auto", False, ChoosingTransport),
        ("openssh", False, ChoosingTransport),
        ("paramiko", True, LocalTransport),
        ("local", False, LocalTransport),
    ],
)
def test_the_register(kind: TransportKind, local: bool, wanted: type[object]) -> None:
    node = Node(name="n", address="n", node_rank=0, local=local)
    transport = make_transport(kind, Cluster(nodes=(node,), master_addr="n"))
    assert isinstance(transport, wanted)
    transport.close()


@dataclass(frozen=True)
class BoxOptions:
    engine: ClassVar[str] = "box"

    box: str = ""


class BoxEngine(Engine):
    """The smallest that there can be; its hosts are named by the user."""

    name = BoxOptions.engine
    options = BoxOptions
    way = "in the box"
    absent = "no host is a box"

    def name_node(self, name: str) -> BoxOptions:
        return BoxOptions(box=name)


class BoxTransport(LocalTransport):
    """Runs commands here, and says in which box."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:
        return super().open(node, f"BOX={node.options(BoxOptions).box}; {command}", deadline, latest)


@pytest.fixture
def boxed(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    known = (*register.engines(), BoxEngine())
    monkeypatch.setattr(register, "engines", lambda: known)
    monkeypatch.setattr("nccl_doctor.inventory.load.engines", lambda: known)
    for module in ("nccl_doctor.transport", "nccl_doctor.inventory.load"):
        monkeypatch.setattr(f"{module}.kinds", lambda: {engine.name: engine for engine in known})
    monkeypatch.setitem(TRANSPORTS, "box", lambda *_: BoxTransport())
    return load(None, where="here,away", exclude=None, environ={}, transport="box")


def test_a_new_engine_is_its_description_and_its_transport(boxed: Cluster) -> None:
    here, _ = boxed.nodes
    assert [engine.name for engine in register.engines_of(here)] == ["box"]
    assert register.command_way(here) == "in the box"
    assert register.ClusterSource(boxed).arguments == ("-w", "here,away", "--transport", "box")
    transport = make_transport("box", boxed)
    channel = transport.open(here, "echo $BOX", time.monotonic() + 20)
    assert channel.read_line(time.monotonic() + 20) == b"here"
    channel.close()
    transport.close()
