"""Text that is harmless in LaTeX."""

import re

_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "\u2009": r"\,",
}


def escape(text: str) -> str:
    """On one line, too: an empty one would end the paragraph, and with it the table."""
    return "".join(_SIGNS.get(char, rf"\{char}" if char in "&%$#_{}" else char) for char in one_line(text))


def one_line(text: str) -> str:
    """Without line breaks; a thin space stays one."""
    return re.sub(r"[^\S\u2009]+", " ", text)
