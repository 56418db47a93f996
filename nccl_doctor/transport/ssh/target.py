"""Whom we tried to reach."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.snapshot import SshTarget


@dataclass(frozen=True)
class Target:
    """Whom we tried to reach.

    Attributes:
        name: as given to ssh, so that ~/.ssh/config applies.
        hop: a jump host on the way to the host, not the host itself.
        via: reached through a jump host or a proxy command, so that ssh-keyscan can't see it.
    """

    name: str
    address: str
    port: int
    user: str
    hop: bool = False
    via: bool = False

    @property
    def facts(self) -> SshTarget:
        """What every failure's facts begin with."""
        return SshTarget(
            target=self.name,
            address=self.address,
            port=self.port,
            user=self.user,
            jump_host=self.name if self.hop else None,
        )
