"""Types, errors, specs and configuration: what every layer may know. No jax in here."""
