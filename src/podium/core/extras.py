"""How an optional part of Podium is installed."""


def install_line(extra: str) -> str:
    """The command that installs an extra, in a checkout of Podium: it is on no package index.

    >>> install_line("atari")
    "`pip install -e '.[atari]'` in Podium's checkout"
    """
    return f"`pip install -e '.[{extra}]'` in Podium's checkout"
