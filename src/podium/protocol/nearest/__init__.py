"""Streams of a run on several hosts: shared memory between ends on one host, TCP between hosts."""

from podium.protocol.nearest.transport import NearestTransport

__all__ = ["NearestTransport"]
