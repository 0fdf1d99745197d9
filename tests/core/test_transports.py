"""Transports are registered once: names, classes and abilities agree."""

import sys
from typing import get_args

import pytest

from podium.core.errors import StreamError
from podium.core.imports import load_path
from podium.core.transports import MEMORY, SHM, TRANSPORTS, TransportName, between_processes, others
from podium.protocol.streams import Transport, TransportPlace


def test_every_name_has_a_class_that_makes_streams():
    assert tuple(TRANSPORTS) == get_args(TransportName)
    for kind in TRANSPORTS.values():
        assert issubclass(load_path(kind.entry, "transport"), Transport)


@pytest.mark.parametrize(("platform", "name"), [("linux", "shm"), ("darwin", "tcp")])
def test_the_nearest_that_leaves_a_process_and_that_this_platform_has(platform, name, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert between_processes() == name


def test_what_is_advised_instead_reaches_further():
    assert (others(MEMORY), others(SHM)) == ("shm or tcp", "tcp")


def test_memory_does_not_leave_its_process(tmp_path):
    with pytest.raises(StreamError, match="actor-0: transport memory does not leave its process"):
        load_path(MEMORY.entry, "transport").at(TransportPlace("actor-0", "here", tmp_path, "127.0.0.1", None))
