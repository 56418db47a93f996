"""The facts, typed: one document that holds all that was seen, and that checks judge.

Every fact is a value or :class:`Unknown`, which says why nobody could look. ``bool(Unknown)`` raises, so that
"could not look" can't slip through an ``if`` as "no". JSON of an unknown fact: ``{"$unknown": "reason"}``.

One module a subject; everything is imported from here.
"""

from __future__ import annotations

from nccl_doctor.model.base import MALFORMED as MALFORMED
from nccl_doctor.model.base import NOT_ASKED as NOT_ASKED
from nccl_doctor.model.base import PENDING as PENDING
from nccl_doctor.model.base import Fact as Fact
from nccl_doctor.model.base import Phased as Phased
from nccl_doctor.model.base import Skipped as Skipped
from nccl_doctor.model.base import Unknown as Unknown
from nccl_doctor.model.base import known as known
from nccl_doctor.model.base import skipped as skipped
from nccl_doctor.model.base import unknown as unknown
from nccl_doctor.snapshot.access import AccessFailure as AccessFailure
from nccl_doctor.snapshot.access import AnyAccessFailure as AnyAccessFailure
from nccl_doctor.snapshot.access import ChangedKeyFacts as ChangedKeyFacts
from nccl_doctor.snapshot.access import EngineFacts as EngineFacts
from nccl_doctor.snapshot.access import EngineFailure as EngineFailure
from nccl_doctor.snapshot.access import HostKeyChanged as HostKeyChanged
from nccl_doctor.snapshot.access import HostKeyUnknown as HostKeyUnknown
from nccl_doctor.snapshot.access import LoginFacts as LoginFacts
from nccl_doctor.snapshot.access import ProbeFacts as ProbeFacts
from nccl_doctor.snapshot.access import ProbeFailed as ProbeFailed
from nccl_doctor.snapshot.access import PythonFacts as PythonFacts
from nccl_doctor.snapshot.access import PythonMissing as PythonMissing
from nccl_doctor.snapshot.access import PythonProblem as PythonProblem
from nccl_doctor.snapshot.access import Reason as Reason
from nccl_doctor.snapshot.access import SshAuthFailed as SshAuthFailed
from nccl_doctor.snapshot.access import SshTarget as SshTarget
from nccl_doctor.snapshot.access import SshUnreachable as SshUnreachable
from nccl_doctor.snapshot.access import UnknownKeyFacts as UnknownKeyFacts
from nccl_doctor.snapshot.access import UnreachableFacts as UnreachableFacts
from nccl_doctor.snapshot.hosts import Host as Host
from nccl_doctor.snapshot.hosts import HostFacts as HostFacts
from nccl_doctor.snapshot.hosts import Snapshot as Snapshot
from nccl_doctor.snapshot.mesh import Interception as Interception
from nccl_doctor.snapshot.mesh import Mesh as Mesh
from nccl_doctor.snapshot.mesh import Rail as Rail
from nccl_doctor.snapshot.mesh import Sample as Sample
from nccl_doctor.snapshot.mesh import Stall as Stall
from nccl_doctor.snapshot.network import Firewalld as Firewalld
from nccl_doctor.snapshot.network import FirewallFacts as FirewallFacts
from nccl_doctor.snapshot.network import InterfaceAddress as InterfaceAddress
from nccl_doctor.snapshot.network import Interfaces as Interfaces
from nccl_doctor.snapshot.network import IptablesSave as IptablesSave
from nccl_doctor.snapshot.network import Link as Link
from nccl_doctor.snapshot.network import Names as Names
from nccl_doctor.snapshot.network import PortRange as PortRange
from nccl_doctor.snapshot.network import PortTrial as PortTrial
from nccl_doctor.snapshot.network import Process as Process
from nccl_doctor.snapshot.network import Refusal as Refusal
from nccl_doctor.snapshot.network import Resolution as Resolution
from nccl_doctor.snapshot.network import Resolver as Resolver
from nccl_doctor.snapshot.network import ResolverAnswer as ResolverAnswer
from nccl_doctor.snapshot.network import Route as Route
from nccl_doctor.snapshot.network import TcpSocket as TcpSocket
from nccl_doctor.snapshot.network import Way as Way
from nccl_doctor.snapshot.network import addresses_by_name as addresses_by_name
from nccl_doctor.snapshot.network import deviations as deviations
from nccl_doctor.snapshot.smoke import Smoke as Smoke
from nccl_doctor.snapshot.surroundings import Outside as Outside
from nccl_doctor.snapshot.surroundings import Surroundings as Surroundings
from nccl_doctor.snapshot.system import Clock as Clock
from nccl_doctor.snapshot.system import ConfigFile as ConfigFile
from nccl_doctor.snapshot.system import Gpu as Gpu
from nccl_doctor.snapshot.system import GpuProcess as GpuProcess
from nccl_doctor.snapshot.system import Identity as Identity
from nccl_doctor.snapshot.system import LibncclAnswer as LibncclAnswer
from nccl_doctor.snapshot.system import PythonInfo as PythonInfo
from nccl_doctor.snapshot.system import ResourceLimits as ResourceLimits
from nccl_doctor.snapshot.system import Shm as Shm
from nccl_doctor.snapshot.system import TorchInfo as TorchInfo
from nccl_doctor.snapshot.system import TrainingJob as TrainingJob
