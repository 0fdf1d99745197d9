"""The command line: one dataclass for each sub-command, read by tyro. Thin: the work is in the layers below."""
