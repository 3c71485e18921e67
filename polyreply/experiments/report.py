"""Results as Markdown, as LaTeX, and as one HTML page that holds its own styles and pictures."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape as escape_html
from pathlib import Path
from typing import Any

from polyreply.experiments.claims import Verdict
from polyreply.experiments.result import Findings, Result
from polyreply.tables import Cell, Table, escape_latex, escape_markdown, one_line

CLAIMS = "Claims"
_CLAIM_COLUMNS = ("claim", "source", "outcome", "ours", "the paper's")
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
tr.muted td { color: #666; font-style: italic; border-bottom-color: #bbb; padding-top: 0; }
.std { color: #767676; font-size: .85em; } .note, .origin { color: #555; font-size: .85rem; }
.yes, .no, .none { font-weight: 600; white-space: nowrap; } .yes { color: #1a7032; } .no { color: #b3261e; }
.none { color: #666; } img { max-width: 100%; height: auto; } figure { margin: 1rem 0; } nav a { margin-right: 1rem; }
figcaption { color: #555; font-size: .88rem; }
"""


def origin_lines(origin: Mapping[str, Any]) -> list[str]:
    """Where a result comes from, in a few lines for people."""
    lines = {
        "data": origin.get("data"),
        "preparation": origin.get("preparation"),
        "final numbers from": origin.get("final_numbers_from"),
        "preset": origin.get("preset"),
        "seeds": ", ".join(map(str, origin.get("seeds", ()))),
        "second block seeds": ", ".join(map(str, origin.get("second_block_seeds", ()))),
        "signatures": "; ".join(origin.get("signatures", ())),
        "command": origin.get("command"),
        "machines": "; ".join(", ".join(map(str, one.values())) for one in origin.get("machines", ())),
        "time": f"{origin['seconds'] / 60:.1f} minutes for all its tasks" if origin.get("seconds") else "",
        "made": origin.get("made"),
    }
    return [f"{name}: {text}" for name, text in lines.items() if text]


# --- Markdown


def markdown(result: Result) -> str:
    """The result as a page for GitHub: tables, pictures, verdicts and origin."""
    lines = [f"# {escape_markdown(result.title)}", ""]
    lines += [f"{escape_markdown(line)}  " for line in origin_lines(result.origin)] + [""]
    for table in result.findings.tables:
        lines.append(table.render("markdown"))
    for picture in result.findings.pictures:
        caption = escape_markdown(picture.caption)
        lines += [f"![{caption}]({picture.file})", "", caption, ""]
    if result.findings.verdicts:
        rows = [
            [one.text, one.source, Cell(one.outcome, bold=True), one.ours or None, one.paper or None]
            for one in result.findings.verdicts
        ]
        lines += [f"## {CLAIMS}", "", Table("", _CLAIM_COLUMNS, rows).render("markdown")]
    lines += [f"- {escape_markdown(remark)}" for remark in result.findings.remarks]
    return "\n".join(lines).rstrip() + "\n"


# --- LaTeX


def latex(result: Result) -> str:
    """The tables one below the other with their notes, and the pictures; the origin as comments."""
    lines = [f"% {one_line(line)}" for line in (result.title, *origin_lines(result.origin))]
    for table in result.findings.tables:
        lines += ["", table.render("latex").rstrip("\n")]
    for picture in result.findings.pictures:
        lines += ["", rf"\includegraphics[width=\linewidth]{{{picture.file}}}"]
        lines.append(rf"\par {escape_latex(picture.caption)}")
    return "\n".join(lines) + "\n"


# --- HTML


def html_report(results: Sequence[tuple[Result, Path]], left_out: Sequence[str] = ()) -> str:
    """One page with some results, each given with the folder of its pictures, and reasons why others are left out."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>polyreply reproduce</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>polyreply reproduce</h1>\n<p>Tables and figures of “{_PAPER}”. The paper's numbers, where it has them, "
        "are below ours in grey italics. Where data, size of model or training differ from the paper's, compare "
        "directions, not values.</p>",
        *(f'<p class="note">Left out: {escape_html(reason)}.</p>' for reason in left_out),
    ]
    if len(results) > 1:
        names = [f"{result.name}, {result.origin.get('data', '')}" for result, _ in results]
        links = (f'<a href="#r{place}">{escape_html(name)}</a>' for place, name in enumerate(names))
        parts.append(f"<nav>{' '.join(links)}</nav>")
    for place, (result, folder) in enumerate(results):
        parts.append(f'<h2 id="r{place}">{escape_html(result.title)}</h2>')
        parts.append(f'<p class="origin">{"<br>".join(map(escape_html, origin_lines(result.origin)))}</p>')
        parts += _html_findings(result.findings, folder)
    return "\n".join([*parts, "</body>\n</html>\n"])


def _html_findings(findings: Findings, folder: Path) -> Iterator[str]:
    if findings.verdicts:
        yield from _html_verdicts(findings.verdicts)
    if findings.remarks:
        yield "<ul>" + "".join(f"<li>{escape_html(remark)}</li>" for remark in findings.remarks) + "</ul>"
    for picture in findings.pictures:
        data = base64.b64encode((folder / picture.file).read_bytes()).decode()
        yield f'<figure><img alt="{escape_html(picture.caption)}" src="data:image/png;base64,{data}">'
        yield f"<figcaption>{escape_html(picture.caption)}</figcaption></figure>"
    for table in findings.tables:
        yield table.render("html")


def _html_verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A table whose outcomes are coloured, which other tables cannot do."""
    yield f"<h3>{CLAIMS}</h3>"
    heads = "".join(f"<th>{escape_html(name)}</th>" for name in _CLAIM_COLUMNS)
    yield f'<div class="scroll"><table><tr>{heads}</tr>'
    for one in verdicts:
        outcome = f'<span class="{_CLASSES[one.outcome]}">{one.outcome}</span>'
        texts = [escape_html(text) or "–" for text in (one.text, one.source, one.ours, one.paper)]
        cells = (*texts[:2], outcome, *texts[2:])
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"
