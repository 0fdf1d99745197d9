"""Waiting under a condition, with a limit."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(condition: threading.Condition, look: Callable[[], Found | None], timeout: float) -> Found | None:
    """What `look` finds, called with the condition held; None if it has found nothing for `timeout` seconds."""
    end = time.monotonic() + timeout
    with condition:
        while (found := look()) is None:
            left = end - time.monotonic()
            if left <= 0:
                return None
            condition.wait(left)
        return found
