from __future__ import annotations

import json

from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference, Launch, RankPlace
from nccl_doctor.model.finding import Command, Diagnosis, Fix, Severity
from nccl_doctor.report.render import RenderOptions, render


def made(counts: dict[str, int], gpus: bool = True) -> Launch:
    ranks: list[RankPlace] = []
    for node_rank, (host, count) in enumerate(counts.items()):
        for local in range(count):
            place = RankPlace(
                rank=len(ranks), node_rank=node_rank, host=host, local_rank=local, gpu=str(local) if gpus else None
            )
            ranks.append(place)
    return Launch(
        launcher="torchrun",
        master_addr="10.0.0.1",
        master_port=29500,
        world_size=len(ranks),
        ranks=tuple(ranks),
        commands=tuple(Command(host=host, command=f"start on {host}") for host in counts),
        warnings=("old",),
    )


def launch(plan: Launch) -> str:
    return render("launch", "shell", plan)


SHELL = """\
# 2 nodes, 3 ranks, master 10.0.0.1:29500
#   node  host   local rank  global rank  GPU
#   0     node1  0           0            0
#                1           1            1
#   1     node2  0           2            0

# on node1, ranks 0-1:
start on node1

# on node2, rank 2:
start on node2
"""


def test_ranks_are_drawn_and_each_command_stands_alone() -> None:
    assert launch(made({"node1": 2, "node2": 1})) == SHELL


def test_on_cpus_no_gpu_is_named() -> None:
    assert "#   0     node1  0           0            -\n" in launch(made({"node1": 1}, gpus=False))


def test_many_ranks_take_a_row_a_node() -> None:
    text = launch(made({f"node{n}": 8 for n in range(1, 17)}))
    assert "#   15    node16  0 to 7      120 to 127   0 to 7\n" in text
    assert text.count("\n#   ") == 17


def test_a_batch_script_is_shown_as_it_is() -> None:
    plan = made({"node1": 1}).model_copy(
        update={"launcher": "slurm", "commands": (Command(host=None, command="#!/bin/bash\nsrun x\n"),)}
    )
    assert render("launch", "slurm", plan) == "#!/bin/bash\nsrun x\n"


def test_the_document_holds_all_of_it() -> None:
    document = json.loads(render("launch", "json", made({"node1": 2})))
    assert document["schema"] == 1
    assert document["command"] == "launch"
    assert document["ranks"][1] == {"rank": 1, "node_rank": 0, "host": "node1", "local_rank": 1, "gpu": "1"}
    assert document["commands"] == [{"host": "node1", "command": "start on node1", "place": None}]
    assert document["warnings"] == ["old"]


def test_a_difference_names_diagnoses_before_facts() -> None:
    found = Diagnosis(
        code="NCD603",
        name="nofile-low",
        severity=Severity.WARNING,
        hosts=("node2",),
        message="Few files.",
        fix=Fix(summary=""),
    )
    changes = (
        Change(what="limits.nofile_soft", before="65536", after="256", hosts=("node2", "node3")),
        Change(what="master_port", before="29500", after="29501"),
    )
    both = Difference(changes=changes, diagnoses=DiagnosisChanges(new=(found,)))
    assert render("diff", "human", both) == (
        "new   warning NCD603 nofile-low on node2: Few files.\n"
        "\n"
        "node[2-3]\n"
        "  nofile: 65536 -> 256\n"
        "\n"
        "the cluster\n"
        "  master port: 29500 -> 29501\n"
        "\n"
        "2 facts changed.\n"
    )
    assert "  limits.nofile_soft: 65536 -> 256\n" in render("diff", "human", both, RenderOptions(verbose=True))
    assert render("diff", "human", Difference()) == "Nothing changed.\n"


def test_a_difference_has_the_words_of_the_screens_and_keeps_internals_for_v() -> None:
    def change(what: str, before: str, after: str) -> Change:
        return Change(what=what, before=before, after=after, hosts=("node2",))

    changes = (
        change("ways[#1].iif", "nothing", "null"),
        change("ways[#1].dev", "nothing", "tun0"),
        change("interfaces.links[eno1].mtu", "1500", "9000"),
        change("torch.nccl_library", "/x/libnccl.so.2", "null"),
        change("sysctls.net.ipv4.conf.all.rp_filter", "0", "1"),
        change("processes[#1].user", "nothing", "ann"),
        change("processes[#1].command", "nothing", "train.py"),
        change("processes[#1].unit", "nothing", "null"),
        change("firewall.nft", '{"nftables": []}', '{"nftables": [1]}'),
        change("firewall.ufw", "null", "{}"),
    )
    assert render("diff", "human", Difference(changes=changes)) == (
        "node2\n"
        "  firewall: rules -> other rules\n"
        "  interface eno1 mtu: 1500 -> 9000\n"
        "  NCCL library: /x/libnccl.so.2 -> none\n"
        "  net.ipv4.conf.all.rp_filter: 0 -> 1\n"
        "  training process #1: none -> ann, train.py\n"
        "\n"
        "10 facts changed; -v shows each.\n"
    )
    everything = render("diff", "human", Difference(changes=changes), RenderOptions(verbose=True))
    assert "  ways[#1].dev: none -> tun0\n" in everything
    assert everything.endswith("10 facts changed.\n")
