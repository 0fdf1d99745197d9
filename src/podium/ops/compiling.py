"""How programs that learn are compiled: many small steps, one after the other."""

from collections.abc import Callable
from typing import Any

import jax

CPU_OPTIONS: dict[str, Any] = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
"""On the CPU, XLA orders a program so that more of it could run at once. Networks of this size have too little to do
at once for that to pay: what is computed is better used while it is still in the cache."""


def jit_learning(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` for updates and for whole training loops; not to be called inside another compiled function.

    learn = jit_learning(algorithm.update, donate_argnums=0)
    """
    chosen = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=chosen, **options)
