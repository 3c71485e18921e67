"""Documentation stays true: links resolve, generated pages are fresh."""

import re
from pathlib import Path

import pytest
from test_layout import STAGES

from tools import docs as reference

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def links(page):
    """Targets of the inline links and images of a page, web addresses left out."""
    targets = re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text(encoding="utf-8")))
    return [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]


def anchors(page):
    """Anchors that GitHub gives to the headings of a page: lower case, punctuation dropped, spaces to hyphens."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names, seen = set(), {}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_results_page_keeps_short_lines():
    lines = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) < 120


@pytest.mark.parametrize(
    "name, render", [("cli.md", reference.render_commands), ("recipes.md", reference.render_recipes)]
)
def test_generated_pages_are_fresh(name, render):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == render(), f"docs/{name} is stale; run `make docs`"


def test_every_setting_is_documented():
    assert "| `overlap.threshold` | `0.75` | Dialogues are near-duplicates" in reference.render_recipes()


def test_contributing_lists_every_stage_in_the_order_of_imports():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^polyreply/(\w+)(?:\.py|/)", text, re.MULTILINE)
    assert listed == [*STAGES, "recipes", "shipped"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_names_exist(page):
    """`polyreply/…`, `tests/…` and `tools/…` in backticks or in the layout block."""
    named = re.findall(r"(?:^|`)((?:polyreply|tests|tools)/[\w./-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tour_names_the_models_files():
    """The table of docs/architecture.md that names files without their folder."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("| file in `polyreply/models` |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+\.py)`", table)
    assert len(named) > 5 and [name for name in named if not (ROOT / "polyreply" / "models" / name).exists()] == []
