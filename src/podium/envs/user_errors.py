"""What a user's own code raises, as an EnvError with his traceback."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from podium.core.errors import EnvError, PodiumError


@contextmanager
def user_errors(place: str) -> Iterator[None]:
    """Around a call into a user's environment: `with user_errors("environments 0 to 3 raised in step"): ...`.

    What Podium itself raises passes: it says already what is wrong.
    """
    try:
        yield
    except PodiumError:
        raise
    except Exception as error:
        own = "".join(traceback.format_exception(error))
        raise EnvError(f"{place}:\n{own}") from error
