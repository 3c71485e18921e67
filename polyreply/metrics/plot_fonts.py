"""Fonts for names in any script, from those that are installed."""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_PREFERRED = ("Noto Sans CJK", "Source Han Sans", "PingFang", "Microsoft YaHei", "WenQuanYi", "SimHei", "Noto Sans")
"""Names of fonts that are looked at before the others begin with one of these."""
_NO_LETTERS = ("Last Resort", "STIXSize", "STIXNonUnicode", "cm")
"""Fonts of matplotlib's own that show boxes, or signs in the places of others."""


def families(names: Sequence[str]) -> list[str]:
    """The usual fonts, and after them those that have the letters of the names that the usual ones lack."""
    return list(_find("".join(names))[0])


def missing_letters(names: Sequence[str]) -> str:
    """One line about letters that no installed font has, which a plot shows as boxes; empty when there are none."""
    missing = _find("".join(names))[1]
    if not missing:
        return ""
    return (
        f"no installed font has the letters {missing[:20]}: the picture shows boxes; install a font for them (for "
        "Chinese, Noto Sans CJK), or give other names with NAME=FILE"
    )


@lru_cache(maxsize=8)
def _find(text: str) -> tuple[tuple[str, ...], str]:
    """Families that have as many of the letters as can be, and the letters that none has."""
    from matplotlib import font_manager, rcParams

    usual = tuple(rcParams["font.family"])
    base = font_manager.findfont(font_manager.FontProperties(family=list(usual)))
    missing = {char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Zs")} - _letters(base)
    found = []
    if missing:
        for entry in sorted(font_manager.fontManager.ttflist, key=_preference):
            useful = not entry.name.startswith(_NO_LETTERS) and entry.style == "normal"
            known = missing & _letters(entry.fname) if useful else set()
            if known:
                missing -= known
                found.append(entry.name)
            if not missing:
                break
    return (*usual, *found), "".join(sorted(missing))


def _preference(entry: Any) -> tuple[bool, str]:
    return not entry.name.startswith(_PREFERRED), entry.name


def _letters(path: str) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # a damaged file among the installed ones
        return frozenset()
