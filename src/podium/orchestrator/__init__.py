"""Runs a Program: starts its workers in threads or processes, watches over them, restarts what dies, and ends all."""
