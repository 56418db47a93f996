"""What a host's libnccl answered (probe/witness.py), as the fact ``nccl_interface`` of a snapshot."""

from __future__ import annotations

from nccl_doctor.model import NcclInterface
from nccl_doctor.nccl.picture import picture
from nccl_doctor.snapshot import Host, HostFacts, Interfaces, LibncclAnswer, Unknown, unknown


def nccl_interface(host: Host, answer: LibncclAnswer | None) -> NcclInterface | Unknown | None:
    """Which interface NCCL uses on a host, by its libnccl where that could be asked, else by the model.

    Args:
        host: with its facts; ``nccl_interface`` among them does not count.
        answer: what its libnccl said; None where the host was not asked.

    Returns:
        The interface and who says so; None where NCCL ends without one; Unknown where neither can tell, or where
        libnccl failed although by its rules there is an interface.
    """
    told = _told(host.facts, answer) if answer is not None and host.facts is not None else None
    if told is not None:
        return told
    if host.facts is not None:
        host = host.model_copy(update={"facts": host.facts.model_copy(update={"nccl_interface": None})})
    modelled = picture(host)
    if isinstance(modelled, Unknown):
        return modelled
    by_rule = modelled.summary
    if by_rule is not None and answer is not None and answer.version is not None and answer.error is not None:
        ended = f"libnccl {answer.version} ended with “{answer.error}”"
        return unknown(f"{ended}; the model of it uses {by_rule.name} ({by_rule.address})")
    return by_rule


def _told(facts: HostFacts, answer: LibncclAnswer) -> NcclInterface | None:
    """What libnccl itself said; where its log line could not be read, by the address in the id that it gave."""
    name, address = answer.interface, answer.address
    if name is None and address is not None and isinstance(facts.interfaces, Interfaces):
        name = next((entry.interface for entry in facts.interfaces.addresses if entry.address == address), None)
    if name is None or address is None:
        return None
    return NcclInterface(name=name, address=address, nccl_version=answer.version, source="libnccl")
