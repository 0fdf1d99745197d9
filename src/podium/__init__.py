"""Podium."""
