"""Programs that learn: XLA knows the options that they are compiled with."""

import jax
import jax.numpy as jnp
import pytest

from podium.ops.compiling import jit_learning


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the options are the CPU's")
def test_the_options_are_known_and_change_no_result() -> None:
    x = jnp.linspace(-1, 1, 64).reshape(8, 8)
    learned = jit_learning(lambda x: jnp.tanh(x @ x).sum(), donate_argnums=())(x)
    assert float(learned) == pytest.approx(float(jnp.tanh(x @ x).sum()), rel=1e-6)
    with pytest.raises(Exception, match="No such compile option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_cpu_no_such_option": False})(x)
