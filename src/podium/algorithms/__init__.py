"""Algorithms: one file each, a tuple of pure functions that every run mode drives alike."""
