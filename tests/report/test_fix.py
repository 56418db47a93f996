"""The screens of ``fix``: the plan before the question, and what became of it."""

from __future__ import annotations

from nccl_doctor.model.acts import ByHand, FixReport, NamedFault, Step, StepResult
from nccl_doctor.model.finding import Severity, on
from nccl_doctor.model.operations.firewall import FirewalldAllow
from nccl_doctor.report.fix import plan_screen, question, script_of
from nccl_doctor.report.render import RenderOptions, render
from nccl_doctor.text.secrets import hide_secrets
from nccl_doctor.text.shell import line


def opening(number: int) -> Step:
    peer = f"10.0.0.{9 - number}"
    allow = FirewalldAllow((peer,), permanent=False, zone="trusted", entries=(("source", peer),))
    return step(number, f"node{number}", str(allow.line), operation=allow)


def step(number: int, host: str | None, command: str, **fields: object) -> Step:
    known = {"number": number, "host": host, "command": command, "code": "NCD301", "mends": "firewall-blocks-port"}
    return Step.model_validate(known | {"root": True, "undo": "back", "survives_reboot": True} | fields)


def by_hand(host: str, value: str) -> ByHand:
    commands = on(host, line("export GLOO_SOCKET_IFNAME={value}", value=value))
    return ByHand(
        code="NCD203",
        name="hostname-loopback",
        severity=Severity.ERROR,
        hosts=(host,),
        summary="Set it there:",
        commands=commands,
    )


OPENINGS = [opening(number) for number in (1, 2, 3, 4)]


def test_a_plan_groups_hosts_and_shows_one_of_many() -> None:
    report = FixReport(plan=(*OPENINGS, step(5, None, "write into hosts.yaml", root=False, mends="ifname-needed")))
    assert plan_screen(report, RenderOptions()) == (
        "Plan: 5 commands on 4 hosts\n"
        "\n"
        " 1  firewall-blocks-port (NCD301) on node[1-4] (as root)\n"
        "    node1:\n"
        "      firewall-cmd --zone=trusted --add-source=10.0.0.8\n"
        "    node[2-4]: the same, each with its own peers' addresses; -v shows them\n"
        "    Can be undone; survives a reboot.\n"
        "\n"
        " 2  ifname-needed (NCD301) on this machine\n"
        "      write into hosts.yaml\n"
        "    Can be undone; survives a reboot.\n"
    )
    whole = plan_screen(report, RenderOptions(verbose=True))
    assert all(one.command in whole for one in report.plan)
    assert question(report.plan) == "Run 5 commands on 4 hosts? [y/N/s(elect)] "


def test_commands_that_differ_in_more_than_their_peers_are_all_shown() -> None:
    """The first host's command is no word for those of another program."""
    other = step(5, "node5", "iptables -w -I INPUT -s 10.0.0.1 -j ACCEPT")
    shown = plan_screen(FixReport(plan=(*OPENINGS, other)), RenderOptions())
    assert other.command in shown
    assert "node[2-4]: the same" in shown
    assert "node5" not in shown.partition("the same")[0]


def test_what_is_left_by_hand_has_its_commands() -> None:
    report = FixReport(by_hand=(by_hand("node1", "eth0"), by_hand("node2", "eth1")))
    shown = render("fix", "human", report)
    assert "There is no command that fix can run." in shown
    assert (
        "  hostname-loopback (NCD203) on node1: Set it there:\n      node1: export GLOO_SOCKET_IFNAME=eth0\n" in shown
    )


def test_results_tell_what_failed_and_what_is_still_there() -> None:
    report = FixReport(
        plan=tuple(OPENINGS),
        results=(
            StepResult(number=1, host="node1", outcome="done", exit_code=0, output="success"),
            StepResult(number=2, host="node2", outcome="failed", exit_code=252, output="FirewallD is not running"),
            StepResult(number=3, host="node3", outcome="unknown", reason="the connection ended while it ran"),
            StepResult(number=4, host="node4", outcome="changed", reason="the host was restarted since it was checked"),
        ),
        remaining=(NamedFault(name="firewall-blocks-port", hosts=("node2", "node3", "node4")),),
        verdict="1 error, 0 warnings.",
    )
    assert render("fix", "human", report) == (
        "1 of 4 commands succeeded on 4 hosts.\n"
        "\n"
        "node2: a step failed (exit status 252)\n"
        "  firewall-cmd --zone=trusted --add-source=10.0.0.7\n"
        "    FirewallD is not running\n"
        "node3: a step has an unknown outcome: the connection ended while it ran\n"
        "  firewall-cmd --zone=trusted --add-source=10.0.0.6\n"
        "node4: a step was left alone: the host was restarted since it was checked\n"
        "  firewall-cmd --zone=trusted --add-source=10.0.0.5\n"
        "\n"
        "  firewall-cmd --zone=trusted --add-source=10.0.0.8\n"
        "    success\n"
        "\n"
        "Still there: firewall-blocks-port on node[2-4]\n"
        "\n"
        "1 error, 0 warnings.\n"
    )


def test_no_secret_is_shown() -> None:
    secret = "wandb login --api-key=0123456789abcdef0123456789abcdef01234567"
    report = FixReport(
        plan=(step(1, "node1", secret),),
        by_hand=(by_hand("node1", "x"),),
        results=(StepResult(number=1, host="node1", outcome="failed", output=secret),),
    )
    assert "0123456789abcdef" not in hide_secrets(report).model_dump_json()


def test_a_script_holds_each_command_as_it_is() -> None:
    steps = [OPENINGS[0], step(2, "node1", "an\x1b[31m odd one"), step(3, None, "write it", settings={"A": "b"})]
    assert script_of("node1", steps) == (
        "#!/bin/sh\n"
        "# Commands of nccl-doctor for node1; run them there, as root.\n"
        "set -e\n"
        "# firewall-blocks-port (NCD301)\n"
        "firewall-cmd --zone=trusted --add-source=10.0.0.8\n"
        "# firewall-blocks-port (NCD301)\n"
        "# an odd one\n"
        "# firewall-blocks-port (NCD301)\n"
        "# write it\n"
    )
