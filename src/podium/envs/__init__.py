"""Environments: adapters that bring every library to one batched, next-step-autoreset form."""
