"""Tables: drawn on a terminal, plain aligned text where something else reads it."""

import sys
from collections.abc import Sequence

from podium.runs.results import format_return


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headers.

    print_table(["name", "return"], [["run-1", 497.3]])
    """
    cells = [[_format(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(headers, cells)
        return
    widths = [max(len(cell) for cell in column) for column in zip(headers, *cells, strict=True)]
    for row in (headers, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _draw(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _format(cell: object) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return format_return(cell)
    return str(cell)
