"""How a worker's process learns that its launcher is gone."""

import os
from abc import ABC, abstractmethod


class Lifeline(ABC):
    """Something that ends with the launcher, however that ends."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the launcher is gone."""


class PipeLifeline(Lifeline):
    """The reading end of a pipe whose writing end only the launcher has: the system closes it with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self) -> None:
        while os.read(self._descriptor, 4096):
            pass
