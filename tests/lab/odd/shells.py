"""Shells: what stands between sshd and the command that it runs."""

from __future__ import annotations

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import READY, Make, Row
from tests.lab.odd.users import AS_ALICE, runs


def shell(path: str, start_up: str = "", text: str = "") -> Make:
    """alice's login shell, and the text of one of its start-up files."""

    def make(_lab: Lab, host: LabHost) -> None:
        host.run(f"usermod -s {path} alice")
        if start_up:
            host.write(f"/home/alice/{start_up}", text)
            host.run("chown -R alice: /home/alice")

    return make


def bashrc(text: str) -> Make:
    """bash, which reads .bashrc where sshd starts it."""
    return shell("/bin/bash", ".bashrc", text + "\n")


def _odd(setup: str, make: Make, says: tuple[str, ...] = READY, ssh: tuple[int, str] = (0, "")) -> Row:
    return Row(setup, says, make, ssh, AS_ALICE)


NOISE = "echo Welcome\nprintf 'no line end'\necho warning >&2\n"
LOGIN = "its login ended without starting"

ROWS = (
    _odd("dash", shell("/bin/dash")),
    _odd("zsh", shell("/usr/bin/zsh")),
    _odd("zsh whose .zshenv prints", shell("/usr/bin/zsh", ".zshenv", NOISE)),
    _odd("fish", shell("/usr/bin/fish")),
    _odd("fish whose configuration prints and fails", shell("/usr/bin/fish", ".config/fish/config.fish", NOISE + "nosuch\n")),
    _odd("tcsh", shell("/usr/bin/tcsh")),
    _odd("tcsh whose .tcshrc prints", shell("/usr/bin/tcsh", ".tcshrc", "echo Welcome\n")),
    _odd("busybox", runs("ln -s /usr/bin/busybox /bin/ash && usermod -s /bin/ash alice")),
    _odd("rbash", shell("/bin/rbash"), ("probe-failed", LOGIN, "restricted", "login shell")),
    _odd("false as the shell", shell("/bin/false"), ("probe-failed", LOGIN), (1, "")),
    _odd(".bashrc that exits with 0", bashrc("exit 0"), ("probe-failed", LOGIN, "start-up files")),
    _odd(".bashrc that exits with 3", bashrc("exit 3"), ("probe-failed", LOGIN, "start-up files"), (3, "")),
    _odd(".bashrc that fails under set -e", bashrc("set -e\nnosuch --option"),
         ("probe-failed", LOGIN, "nosuch: command not found", "start-up files"), (127, "nosuch")),
    _odd(".bashrc that starts tmux", bashrc("exec tmux new -A"),
         ("probe-failed", LOGIN, "open terminal failed"), (1, "open terminal failed")),
    _odd(".bashrc that sets -x", bashrc("set -x")),
    _odd(".bashrc that prints 1 MB", bashrc("head -c 1000000 /dev/zero | tr '\\0' x\nhead -c 1000000 /dev/urandom >&2")),
    _odd(".bashrc that prints control characters", bashrc("printf '\\033[2J\\033]0;title\\007\\r\\b%s' \"$(seq 500)\"")),
    _odd(".bashrc that prints what looks like ours", bashrc("echo '{\"hello\": {}}'; echo ncdoctor-0123456789abcdef")),
    _odd(".bashrc that wants a terminal", bashrc("stty sane\ntput clear\nclear\nset -o vi")),
    _odd(".bashrc with a locale that is not there", bashrc("export LANG=xx_YY.UTF-8 LC_ALL=xx_YY.UTF-8")),
    _odd(".bashrc with LC_ALL=C and a Turkish LANG", bashrc("export LC_ALL=C LANG=tr_TR.ISO-8859-9 PYTHONUTF8=0")),
    _odd(".bashrc with another time zone, and one that is none", bashrc("export TZ=Asia/Kathmandu; TZ=No/Such date")),
    _odd(".bashrc that empties PATH", bashrc("export PATH=/nowhere")),
    _odd("a PATH with a folder that the user may not enter and a file", bashrc("export PATH=/root/bin:/etc/passwd")),
    _odd(".bashrc that unsets HOME and USER", bashrc("unset HOME USER LOGNAME")),
    _odd(".bashrc that goes elsewhere and hides files", bashrc("umask 777; mkdir -p /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")),
    _odd(".bashrc with traps and functions", bashrc("trap 'echo bye' EXIT TERM HUP\npython3() { echo mine; }\nalias exec=false")),
    _odd(".bashrc that starts an agent for each login", bashrc("eval $(ssh-agent -s)")),
    _odd(".bashrc that sends all output elsewhere", bashrc("exec >/dev/null 2>&1"), ("probe-failed", LOGIN, "start-up files")),
    _odd("~/.ssh/rc that prints", shell("/bin/bash", ".ssh/rc", NOISE)),
)  # fmt: skip

LATE = "did not start in time: the login waits or runs something else"
SLOW = (
    _odd(".bashrc that sleeps for 600 s", bashrc("sleep 600"), ("probe-failed", LATE), (124, "")),
    _odd(".bashrc that reads stdin", bashrc("read -r answer"), ("probe-failed", LATE)),
    _odd(".bashrc with a program in the background that holds our output", bashrc("sleep 600 &"), READY, (124, "")),
)
"""What only a deadline ends."""
