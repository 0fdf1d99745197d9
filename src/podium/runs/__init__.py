"""A run on disk: its directory, metrics, summary, checkpoints, pictures and films, and its progress on the screen."""
