"""Streams between the processes of one host: rings and areas in shared memory, no copy but the caller's own."""

from podium.protocol.shm.directories import OwnedDirectory, create_directory, sweep
from podium.protocol.shm.transport import ShmTransport

__all__ = ["OwnedDirectory", "ShmTransport", "create_directory", "sweep"]
