"""Lines of the table that stand elsewhere: tests that were there before it, or that need a lab of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """One line.

    Attributes:
        setup: what is odd.
        ssh: what ``ssh HOST true`` does there.
        says: what has to be said.
        test: where that is tested, as pytest takes it.
    """

    setup: str
    ssh: str
    says: str
    test: str


_ACCESS, _ENDS, _CHECK = "tests/cli/test_access_lab.py", "tests/cli/test_end_lab.py", "tests/cli/test_check_lab.py"
_SSH, _JUMP, _SESSION = ("tests/transport/test_as_ssh.py", "tests/transport/test_jump.py", "tests/crew/test_session.py")

LINES = (
    Standing("Slurm lets in who has a job", "255, PAM's words", "ssh-auth-failed with those words", f"{_ACCESS}::test_the_servers_own_words_end_the_search"),
    Standing("an expired account", "255, PAM's words", "ssh-auth-failed with those words", f"{_ACCESS}::test_the_servers_own_words_end_the_search"),
    Standing("a .bashrc that starts another shell", "hangs", "probe-failed, and no program is sent to it", f"{_ACCESS}::test_a_login_shell_that_starts_another_is_sent_no_program"),
    Standing("a slow PAM module, and a slow .bashrc", "0, late", "nothing", f"{_ACCESS}::test_a_slow_login_is_waited_for_as_ssh_does"),
    Standing("a login that hangs, ended by us", "hangs", "probe-failed, and its shell is gone", f"{_ACCESS}::test_a_login_that_hangs_is_hung_up_on"),
    Standing("a /dev/shm that the user may not write to", "0", "shm-small, mended by what is printed", f"{_ACCESS}::test_shared_memory_that_the_user_may_not_write_to"),
    Standing("memory nearly full", "0", "probe-failed, or allreduce-failed by SIGKILL, and memory as its reason", f"{_ACCESS}::test_a_host_with_nearly_no_memory"),
    Standing("the way that an inventory's arguments name", "255, and 0 by -J", "nothing", f"{_ACCESS}::test_the_way_that_an_ansible_inventory_names"),
    Standing("a bastion known by a CA, a host by KnownHostsCommand", "0", "nothing", f"{_ACCESS}::test_hosts_known_in_unlike_ways_are_reached_alike"),
    Standing("one host of three that is reached", "255 from two", "no ok for what nobody looked at", f"{_ACCESS}::test_where_one_host_or_none_was_reached_nobody_says_ok_for_the_others"),
    Standing("names that ~/.ssh/config alone knows", "0", "one hostname-unresolvable", f"{_ACCESS}::test_names_that_only_the_ssh_configuration_knows_are_one_finding"),
    Standing("seven hosts that can't be reached, each for a reason of its own", "255", "each its own diagnosis", f"{_CHECK}::test_each_host_that_cant_be_reached_is_named_for_its_own_reason_and_the_others_are_judged"),
    Standing("an unknown host key", "255", "ssh-host-key-unknown, mended by what is printed", f"{_CHECK}::test_an_unknown_host_key_is_mended_by_the_line_that_is_printed"),
    Standing("a changed host key", "255", "ssh-host-key-changed with file and line", f"{_CHECK}::test_a_changed_host_key_is_named_by_file_and_line"),
    Standing("a Python without any package", "0", "torch-missing, the rest judged", f"{_CHECK}::test_a_host_without_any_package_is_judged_for_the_rest"),
    Standing("a python3 that only a login shell has", "0", "login-environment-differs", "tests/cli/test_same_lab.py::test_what_only_a_login_shell_has"),
    Standing("few open files", "0", "nofile-low", "tests/cli/test_same_lab.py::test_few_files"),
    Standing("a port held by another user's process", "0", "what is known of its holder, and how to see the rest", "tests/cli/test_fix_port_lab.py::test_a_process_of_another_user_goes_by_force_of_root_alone"),
    Standing("rules that nobody may read", "0", "unread where a dial failed, no gap elsewhere", "tests/cli/test_firewall_lab.py::test_without_root_the_rules_are_unknown_only_where_a_dial_failed"),
    Standing("a hundred ssh configurations", "as the table there says", "the same", f"{_SSH}::test_the_same_verdict_and_key"),
    Standing("ProxyJump with 12 hosts", "0", "nothing, by one connection", f"{_JUMP}::test_one_connection_for_many_hosts"),
    Standing("a name, a port and a ban that fail behind one jump host", "255", "each its own reason", f"{_JUMP}::test_each_thread_is_told_its_own_failure_behind_one_jump_host"),
    Standing("a greeting of noise around the probe's words", "0", "nothing", f"{_SESSION}::test_noise_before_and_between_does_no_harm"),
    Standing("an agent that hangs", "hangs", "exit 2 after 3 s, names it", "tests/transport/test_access.py::test_a_hung_agent_is_named_and_accuses_no_host"),
    Standing("netlink refused by a filter of system calls", "0", "interfaces are unknown, with the reason", "tests/probe/test_facts_network.py::test_where_netlink_is_refused_nccl_finds_nothing_either_and_sockets_come_from_proc"),
    Standing("Slurm's variables", "-", "its nodes", "tests/inventory/test_load.py::test_slurm"),
    Standing("a hosts file on stdin", "-", "is read", "tests/inventory/test_reading.py::test_standard_input_is_a_hosts_file_also_where_it_is_a_socket"),
    Standing("Ctrl-C in each phase", "-", "130, nothing left", f"{_ENDS}::test_ctrl_c_ends_at_once_with_130_and_leaves_nothing"),
    Standing("Ctrl-C twice in each phase", "-", "nothing left", f"{_ENDS}::test_ctrl_c_twice_leaves_nothing_either"),
    Standing("a closed terminal in each phase", "-", "nothing left", f"{_ENDS}::test_a_closed_terminal_leaves_nothing"),
    Standing("SIGKILL of the tool in each phase", "-", "nothing left", f"{_ENDS}::test_kill_9_of_the_controller_leaves_nothing_after_five_seconds"),
    Standing("SIGKILL of the tool at random moments", "-", "nothing left", "tests/lab/test_odd.py::test_killed_at_random_moments_it_leaves_nothing"),
    Standing("SIGKILL of ssh, of the probe, of the session's sshd", "-", "its host is named, nothing left", f"{_ENDS}::test_what_is_killed_under_a_run_is_named_and_leaves_nothing"),
    Standing("a link that is pulled in the all-reduce", "hangs", "its host is named, nothing runs on there after ten seconds", f"{_ENDS}::test_after_a_pulled_link_nothing_runs_on"),
    Standing("suspended in each phase", "-", "nothing runs after ten seconds, then nobody is accused", f"{_ENDS}::test_a_run_that_was_suspended_accuses_nobody"),
)  # fmt: skip
