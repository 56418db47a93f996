"""What the lab raises."""

import subprocess


class LabError(Exception):
    """The lab could not do what was asked; the message is one sentence that says what to change."""


class CommandFailed(subprocess.CalledProcessError):
    """A command on a lab host failed; unlike its parent it shows what the command printed."""

    def __str__(self) -> str:
        return f"{super().__str__()}\nstdout: {self.stdout}\nstderr: {self.stderr}"
