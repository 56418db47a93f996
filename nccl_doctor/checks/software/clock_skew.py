"""The clocks of the hosts differ.

What it means: the log lines of different ranks can't be sorted by time. With `--rdzv_backend=c10d`, torchrun might
consider a host dead if the host's clock is more than 10 s behind another host's clock. The dynamic rendezvous drops a
host if the host's last keep-alive is older than 15 s, which is three intervals of 5 s. The timestamp of a keep-alive
comes from the sender's clock, and even without a clock difference, the last keep-alive is up to 5 s old
(torch/distributed/elastic/rendezvous/dynamic_rendezvous.py). A static rendezvous (`--master_addr`) is not affected. If
the clocks differ by several minutes, certificates and Kerberos tickets might be rejected.

How we know: the check requests each host's time over the existing connection to the host. The error of this measurement
is at most half of the round-trip time. A clock difference is reported only if it exceeds the maximum measurement error
by more than 2 s. The median of all hosts' clocks is assumed to be the correct time.

Fix: synchronize the host's clock over the network with `timedatectl set-ntp true` or chrony.
"""

from statistics import median_low

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.snapshot.system import Clock
from nccl_doctor.text.hostlist import fold, nouns

MUCH_S = 2.0
C10D_S = 10.0
"""Clock difference from which torch's dynamic rendezvous might drop a host.

The value is keep_alive_interval * (keep_alive_max_attempt - 1), since a keep-alive is up to one interval old.
"""


@check("NCD507", phrase="clock is off", severity=Severity.WARNING, needs=("clock",))
def clock_skew(view: View) -> Findings:
    """Yield one finding for all hosts whose clocks differ from the median by more than ``MUCH_S`` seconds."""
    clocks = {host.name: facts.clock for host, facts in view.facts if isinstance(facts.clock, Clock)}
    if len(clocks) < 2:
        return
    middle = median_low(clock.offset_s for clock in clocks.values())
    off = {
        name: clock.offset_s - middle
        for name, clock in clocks.items()
        if abs(clock.offset_s - middle) - clock.error_s > MUCH_S
    }
    if not off:
        return
    worst = max(map(abs, off.values()))
    apart = max(0.0, *off.values()) - min(0.0, *off.values())
    breaks = (
        " With --rdzv_backend=c10d, torchrun might consider a host dead if its clock is more than "
        f"{C10D_S:.0f} s behind another host's."
        if apart > C10D_S
        else ""
    )
    yield Finding(
        hosts=tuple(off),
        message=f"The {nouns(len(off), 'clock')} of {fold(off)} {'differs' if len(off) == 1 else 'differ'} from the "
        f"other hosts' clocks by {'' if len(off) == 1 else 'up to '}{worst:.0f} s.{breaks}",
        evidence=tuple(f"{name}: {abs(s):.1f} s {'ahead' if s > 0 else 'behind'}" for name, s in off.items()),
        facts={"offset_s": {name: round(s, 3) for name, s in off.items()}},
        fix=Fix(
            summary="Synchronize the hosts' clocks over the network: timedatectl set-ntp true, or chrony.",
            needs_root=True,
        ),
    )
