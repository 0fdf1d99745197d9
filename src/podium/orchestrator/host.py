"""What a worker is given of the host it runs on: nothing of it is true on another."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Host:
    """`identity` is equal on two hosts exactly if they share memory.

    Endpoints are bound to `address` and reached there. `shm` is a directory of shared memory that the run's workers on
    this host have in common. `cores` is what each worker of a role may use, if those on this host share it evenly.
    """

    identity: str
    address: str
    shm: str
    cores: int
