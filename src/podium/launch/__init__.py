"""The composition root: from an experiment to a run. It sees every layer below."""
