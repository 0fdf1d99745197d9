"""A table of random numbers that perturbations are slices of: who knows the seed needs an index to know the noise.

    table = NoiseTable(seed=0, size=25_000_000)
    noise = table.numbers[index : index + num_parameters]

Thousands of actors can so tell their noise in four bytes (Salimans et al., 2017). Slices of two individuals may
overlap; in 25 million numbers that is rare enough not to matter.
"""

import logging
import os
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

logger = logging.getLogger(__name__)

UNROLL = 8
"""Slices added up in one pass over the sum: fewer would write it more often, more would not stay in registers."""


class NoiseTable:
    """`size` standard normal numbers made of a seed, when they are first asked for.

    table = NoiseTable(seed=0, size=25_000_000)
    table.share(Path("/dev/shm/my-run"))       # where there are several processes: one copy for all of them
    table.numbers[:3]
    """

    def __init__(self, seed: int, size: int) -> None:
        self.seed = seed
        self.size = size
        self._directory: Path | None = None

    def share(self, directory: Path) -> None:
        """Keep the numbers in a file there, which the first process makes and all others map into memory."""
        self._directory = directory

    @cached_property
    def numbers(self) -> np.ndarray:
        """float32[size], read-only."""
        if self._directory is None:
            return self._keep()
        path = self._directory / f"noise-{self.seed}-{self.size}"
        try:
            if not path.exists():
                self._write(path)
            return np.memmap(path, np.float32, "r", shape=(self.size,))
        except OSError as error:  # a container's /dev/shm has 64 MB, if nobody asked for more
            megabytes = 4 * self.size // 10**6
            logger.warning("no room for %d MB of noise to share: this process keeps its own (%s)", megabytes, error)
            return self._keep()

    def _keep(self) -> np.ndarray:
        numbers = self._draw()
        numbers.flags.writeable = False
        return numbers

    def _draw(self) -> np.ndarray:
        generator = np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence([self.seed, 0xE5])))
        return generator.standard_normal(self.size, np.float32)

    def _write(self, path: Path) -> None:
        """Whole or not at all. Of several who write at once one succeeds, and all map that one's."""
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            draft.touch(mode=0o600)
            self._draw().tofile(draft)
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            draft.unlink(missing_ok=True)


def slices(table: jax.Array, index: jax.Array, size: int) -> jax.Array:
    """The numbers from each index on, [n, size]."""
    return jax.vmap(lambda start: jax.lax.dynamic_slice(table, (start,), (size,)))(index)


def weighted_sum(table: jax.Array, index: jax.Array, weight: jax.Array, size: int) -> jax.Array:
    """sum_i weight[i] * table[index[i] : index[i] + size], without the matrix [n, size] that `slices` would be.

    Some million individuals a second at thousands of parameters; a gather and a product take ten times as long.
    """
    whole = -(-len(index) // UNROLL) * UNROLL
    index, weight = (jnp.pad(x, (0, whole - len(x))) for x in (index, weight))

    def add(block: jax.Array, total: jax.Array) -> jax.Array:
        for place in range(UNROLL):
            i = block * UNROLL + place
            total = total + weight[i] * jax.lax.dynamic_slice(table, (index[i],), (size,))
        return total

    return jax.lax.fori_loop(0, whole // UNROLL, add, jnp.zeros(size, table.dtype))
