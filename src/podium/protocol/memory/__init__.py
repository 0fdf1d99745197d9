"""Streams between the threads of one process: the same promises, nothing copied but what a promise needs."""

from podium.protocol.memory.transport import MemoryTransport

__all__ = ["MemoryTransport"]
