"""The mathematics of reinforcement learning as pure JAX functions: returns, distributions, statistics, keys."""
