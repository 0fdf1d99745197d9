"""How programs that learn are compiled: many small steps, one after the other."""

from collections.abc import Callable
from typing import Any

import jax

OPTIONS: dict[str, Any] = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
"""On the CPU, XLA orders a program so that more of it could run at once. Networks of this size have too little to do
at once for that to pay: what is computed is then used while it is still in the cache. Other devices ignore it."""


def jit_learning(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` for updates and for whole training loops; not to be called inside another compiled function.

    learn = jit_learning(algorithm.update, donate_argnums=0)
    """
    return jax.jit(function, compiler_options=OPTIONS, **options)
