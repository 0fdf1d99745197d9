"""Parameters between threads: each version is one copy that nobody writes to any more, shared by all readers."""

import threading
from collections.abc import Sequence

import numpy as np

from podium.core.errors import RefusedError, StreamError
from podium.protocol.memory.waiting import wait_for
from podium.protocol.schema import Schema, Version, check_arrays
from podium.protocol.streams import Counters, ParameterPublisher, ParameterReader


class PublishedParameters:
    """What readers see of a publisher: `latest` is replaced as a whole, so it is never seen in half."""

    def __init__(self, name: str, schema: Schema) -> None:
        self.name = name
        self.schema = schema
        self.condition = threading.Condition()
        self.latest: tuple[Version, list[np.ndarray]] | None = None


class MemoryParameterPublisher(ParameterPublisher):
    """The learner's end."""

    def __init__(self, policies: dict[str, PublishedParameters], endpoint: str, name: str, schema: Schema) -> None:
        self.endpoint = endpoint
        self.counters = Counters()
        self._policies = policies
        self._policy = policies[endpoint] = PublishedParameters(name, schema)

    def publish(self, version: Version, arrays: Sequence[np.ndarray]) -> None:
        """Copy, then show. Raises ValueError unless the version is newer."""
        policy = self._policy
        check_arrays(policy.schema, arrays)
        if policy.latest is not None and version <= policy.latest[0]:
            raise ValueError(f"version {tuple(version)} is not newer than {tuple(policy.latest[0])}")
        copies = policy.schema.allocate()
        for target, array in zip(copies, arrays, strict=True):
            target[...] = array
            target.flags.writeable = False
        with policy.condition:
            policy.latest = version, copies
            policy.condition.notify_all()
        self.counters.sent += 1

    def close(self) -> None:
        """Leave: readers keep what they have, new ones find nothing."""
        self._policies.pop(self.endpoint, None)


class MemoryParameterReader(ParameterReader):
    """Anybody's end; the arrays cannot be written to, since others read them, too."""

    def __init__(self, policies: dict[str, PublishedParameters], endpoint: str, schema: Schema) -> None:
        self.counters = Counters()
        self._policies = policies
        self._schema = schema
        self._version: Version | None = None
        self._seen: object = None
        self._bind(endpoint)

    def _bind(self, endpoint: str) -> None:
        policy = self._policies.get(endpoint)
        if policy is None:
            raise StreamError(f"no parameters at {endpoint}: their publisher has gone")
        if difference := policy.schema.difference(self._schema):
            raise RefusedError(f"policy {policy.name!r} has another schema: {difference}")
        self._policy = policy

    def read(self, timeout: float = 0.0) -> tuple[Version, list[np.ndarray]] | None:
        """The newest version, if it is newer than ours."""
        if timeout <= 0.0:
            return self._look()
        return wait_for(self._policy.condition, self._look, timeout)

    def _look(self) -> tuple[Version, list[np.ndarray]] | None:
        latest = self._policy.latest
        if latest is self._seen or latest is None:
            return None
        self._seen = latest
        if self._version is not None and latest[0] <= self._version:
            return None
        self._version = latest[0]
        self.counters.received += 1
        return latest[0], list(latest[1])

    def rebind(self, endpoint: str) -> None:
        """Go on at another publisher."""
        self._bind(endpoint)

    def close(self) -> None:
        """Nothing to give back."""
