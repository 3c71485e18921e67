"""`report.html`: results on one page that needs nothing else. Styles and pictures are in it, and there is no script."""

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from polyreply.experiments.claims import Verdict
from polyreply.experiments.render import CLAIMS, deviation, origin_lines, to_the_right
from polyreply.experiments.result import Number, Picture, Result, Row, Table

_PAPER = "An Equal-Size Hard EM Algorithm for Diverse Dialogue Generation"
_CLASSES = {"holds": "yes", "holds, not significantly": "yes", "does not hold": "no", "not measured": "none"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
th { border-bottom: 2px solid #888; vertical-align: bottom; } .r { text-align: right; } td.r { white-space: nowrap; }
tr.paper td { color: #666; font-style: italic; border-bottom-color: #bbb; padding-top: 0; }
.std { color: #767676; font-size: .85em; } .note, .origin { color: #555; font-size: .85rem; }
.yes, .no, .none { font-weight: 600; white-space: nowrap; } .yes { color: #1a7032; } .no { color: #b3261e; }
.none { color: #666; } img { max-width: 100%; height: auto; } figure { margin: 1rem 0; } nav a { margin-right: 1rem; }
figcaption { color: #555; font-size: .88rem; }
"""


def html_report(results: Sequence[tuple[Result, Path]], left_out: Sequence[str] = ()) -> str:
    """The page of some results, each given with the folder of its pictures, and what is left out of it."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>polyreply reproduce</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>polyreply reproduce</h1>\n<p>Tables and figures of “{_PAPER}”, with the paper's numbers, where it has "
        "them, beside ours in grey italics. Where data, sizes of models or training are not the paper's, directions "
        "can be compared and values cannot.</p>",
        *(f'<p class="note">Left out: {escape(told)}.</p>' for told in left_out),
    ]
    if len(results) > 1:
        links = (f'<a href="#r{place}">{escape(_heading(one))}</a>' for place, (one, _) in enumerate(results))
        parts.append(f"<nav>{' '.join(links)}</nav>")
    parts += ["\n".join(_section(result, folder, place)) for place, (result, folder) in enumerate(results)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _heading(result: Result) -> str:
    return f"{result.name}, {result.origin.get('data', '')}"


def _section(result: Result, folder: Path, place: int) -> Iterator[str]:
    found = result.findings
    yield f'<h2 id="r{place}">{escape(result.title)}</h2>'
    yield f'<p class="origin">{"<br>".join(escape(line) for line in origin_lines(result.origin))}</p>'
    if found.verdicts:
        yield from _verdicts(found.verdicts)
    if found.remarks:
        yield "<ul>" + "".join(f"<li>{escape(remark)}</li>" for remark in found.remarks) + "</ul>"
    for picture in found.pictures:
        yield from _picture(picture, folder)
    for table in found.tables:
        yield from _table(table)


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"<h3>{CLAIMS}</h3>"
    yield '<div class="scroll"><table><tr><th>claim</th><th>source</th><th></th><th>ours</th><th>the paper\'s</th></tr>'
    for one in verdicts:
        outcome = f'<span class="{_CLASSES[one.outcome]}">{one.outcome}</span>'
        told = (escape(text) or "–" for text in (one.ours, one.paper))
        yield f"<tr><td>{escape(one.text)}</td><td>{escape(one.source)}</td><td>{outcome}</td>"
        yield "".join(f"<td>{text}</td>" for text in told) + "</tr>"
    yield "</table></div>"


def _picture(picture: Picture, folder: Path) -> Iterator[str]:
    data = base64.b64encode((folder / picture.file).read_bytes()).decode()
    alt = escape(picture.caption, quote=True)
    yield f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
    yield f"<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _table(table: Table) -> Iterator[str]:
    right = to_the_right(table)
    yield f"<h3>{escape(table.title)}</h3>"
    heads = (f"<th{_class(one)}>{escape(text)}</th>" for text, one in zip(table.headings, right, strict=True))
    yield f'<div class="scroll"><table><tr>{"".join(heads)}</tr>'
    for row in table.rows:
        cells = (f"<td{_class(one)}>{_cell(cell, row)}</td>" for cell, one in zip(row.cells, right, strict=True))
        yield ('<tr class="paper">' if row.is_paper else "<tr>") + "".join(cells) + "</tr>"
    yield "</table></div>"
    yield from (f'<p class="note">{escape(note)}</p>' for note in table.notes)


def _class(right: bool) -> str:
    return ' class="r"' if right else ""


def _cell(cell: str | Number, row: Row) -> str:
    if isinstance(cell, str):
        return escape(cell)
    text = escape(cell.text())
    text = f"<b>{text}</b>" if cell.is_best and not row.is_paper else text
    std = f'<span class="std">{deviation(cell)}</span>' if cell.std is not None else ""
    return text + ("*" if cell.is_significant else "") + std
