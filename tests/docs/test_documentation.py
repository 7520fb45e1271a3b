"""Limits and links of the documentation. `mkdocs build --strict` checks the links among its pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {"cli.md", "configuration.md", "http.md"}


def count_words(path: Path) -> int:
    return len(path.read_text().split())


def test_readme_has_at_most_900_words():
    assert count_words(ROOT / "README.md") <= 900


def test_docs_without_reports_and_generated_reference_have_at_most_20_000_words():
    pages = [page for page in (ROOT / "docs").rglob("*.md") if ROOT / "docs" / "reports" not in page.parents]
    assert sum(count_words(page) for page in pages if page.name not in GENERATED) <= 20_000


def test_links_of_the_readme_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert targets
    assert not missing


def test_sources_name_pages_that_exist():
    folders = [ROOT / name for name in ("src", "bench", "tests")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    pages = {page for file in files for page in re.findall(r"docs/[a-z0-9./-]+\.(?:md|svg|png)", file.read_text())}
    assert pages
    assert not [page for page in pages if not (ROOT / page).exists()]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert not {page for page in pages if page not in navigation}


def test_modules_that_the_documentation_names_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {path for page in pages for path in re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`", page.read_text())}
    assert named
    assert not {path for path in named if not (ROOT / path).exists() and not (ROOT / "src" / "bidr" / path).exists()}


def test_scripts_that_the_documentation_names_exist():
    pages = [ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {path for page in pages for path in re.findall(r"(?:bench|tests)/[a-z0-9_/]+\.py", page.read_text())}
    assert named
    assert not {path for path in named if not (ROOT / path).exists()}


def test_dotted_modules_that_the_documentation_names_exist():
    pages = [ROOT / "CONTRIBUTING.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED)]
    named = {name for page in pages for name in re.findall(r"`bidr((?:\.[a-z_]+)+)", page.read_text())}
    paths = [ROOT / "src" / "bidr" / name.strip(".").replace(".", "/") for name in named if name.count(".") > 1]
    assert paths
    missing = [path for path in paths if not any(place.with_suffix(".py").exists() for place in (path, path.parent))]
    assert not missing
