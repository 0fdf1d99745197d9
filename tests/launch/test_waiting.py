"""How workers wait for the others as they start."""

import threading
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from podium.launch.waiting import first_update
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import Version
from podium.workers.action_sources import Weights
from podium.workers.layout import make_layout

LAYOUT = make_layout({"w": jax.ShapeDtypeStruct((3,), np.float32)})


@pytest.mark.parametrize("after_s", [0.0, 0.75], ids=["at once", "late"])
def test_the_first_parameters_are_the_policys_whenever_they_come(after_s: float) -> None:
    with MemoryTransport() as transport:
        publisher = transport.parameter_publisher("main", LAYOUT.schema)
        mean = Weights(LAYOUT, transport.parameter_reader(publisher.endpoint, LAYOUT.schema))
        publish = threading.Timer(after_s, lambda: publisher.publish(Version(0, 4), [np.ones(3, np.float32)]))
        publish.start()
        assert first_update(mean, threading.Event()) == 4
        publish.join()
        assert mean.version == Version(0, 4)
        np.testing.assert_array_equal(mean.params["w"], np.ones(3))


def test_who_reads_no_parameters_is_told_their_update_by_a_reader_apart() -> None:
    nobody: Any = SimpleNamespace(version=None, refresh=lambda timeout: None)
    with MemoryTransport() as transport:
        publisher = transport.parameter_publisher("main", LAYOUT.schema)
        publisher.publish(Version(0, 4), [np.ones(3, np.float32)])
        apart = transport.parameter_reader(publisher.endpoint, LAYOUT.schema)
        assert first_update(nobody, threading.Event(), apart) == 4
