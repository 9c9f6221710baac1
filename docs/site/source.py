"""Write what `make site` builds the site from: ``build/site-source``, the pages in the folders that they have here.

Pages are those of docs/, README.md, CONTRIBUTING.md, CHANGELOG.md, and all that they link to: a notebook becomes a
page with its pictures, a file of settings or code a page that shows it. So a link is right on GitHub and on the site.
The navigation is docs/README.md; the reference has the public names of tests/test_exports.py, by their docstrings.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from docs.site.notebooks import page_of_notebook

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PAGES = BUILD / "site-source"
HERE = Path(__file__).parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
DRAWING = "```mermaid\n"
TYPE = re.compile(r"(?<=MAP)<(STRING,STRING)>")
"""What Python's Markdown takes for a tag of HTML, as GitHub's does not."""
PICTURE = ".png"
LANGUAGES = {
    ".ipynb": "",
    ".json": "json",
    ".toml": "toml",
    ".yml": "yaml",
    ".py": "python",
    ".proto": "proto",
    ".conf": "properties",
    ".service": "ini",
    "": "dockerfile",  # conf/Dockerfile
}
MERMAID = "mermaid@11.17.2"
"""Of the npm registry; the version that tests/docs/test_pictures.py parses the drawings with."""


def roots() -> list[Path]:
    """The pages that the site begins with."""
    return [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
        (ROOT / "docs").rglob("*.md")
    )


def place(file: Path) -> PurePosixPath:
    """The page of a file of the repository: ``conf/log.toml`` is the page ``conf/log.toml.md``; a picture is itself."""
    inside = PurePosixPath(file.relative_to(ROOT).as_posix())
    if inside.suffix == PICTURE:
        return inside
    if inside.name == "README.md":
        return inside.with_name("index.md")
    return inside if inside.suffix == ".md" else inside.with_name(f"{inside.name}.md")


def linked(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for found in LINK.finditer(FENCE.sub("", page.read_text())):
        yield (page.parent / found[1]).resolve()


def rewritten(page: Path) -> str:
    """A page's text with links to pages of the site."""

    def target(found: re.Match[str]) -> str:
        file = (page.parent / found[1]).resolve()
        up = [".."] * (len(page.relative_to(ROOT).parts) - 1)
        return str(PurePosixPath(*up, place(file))) + (found[2] or "")

    def fenced(part: str) -> str:
        # In a frame of its own a drawing can be wider than a narrow screen (site.css).
        return f'<div class="drawing" markdown>\n\n{part}\n\n</div>' if part.startswith(DRAWING) else part

    parts = FENCE.split(page.read_text())
    return "".join(
        fenced(part) if part.startswith("```") else LINK.sub(target, TYPE.sub(r"&lt;\1&gt;", part)) for part in parts
    )


def write_pages() -> None:
    """Write every page, and every file that one links to, as a page."""
    todo, done = roots(), set[Path]()
    while todo:
        file = todo.pop()
        if file in done:
            continue
        done.add(file)
        page = PAGES / place(file)
        page.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            page.write_text(rewritten(file))
            todo += linked(file)
        elif file.suffix == PICTURE:
            shutil.copy(file, page)
        elif file.suffix == ".ipynb":
            page.write_text(page_of_notebook(file, page.parent))
        else:
            name = file.relative_to(ROOT)
            page.write_text(f"# `{name}`\n\n```{LANGUAGES[file.suffix]}\n{file.read_text()}```\n")


def public() -> dict[str, list[str]]:
    """Module to its public names, as tests/test_exports.py pins them."""
    for node in ast.parse((ROOT / "tests" / "test_exports.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PUBLIC":
            found: dict[str, list[str]] = ast.literal_eval(node.value)
            return found
    raise LookupError("tests/test_exports.py has no PUBLIC")


def write_reference() -> list[tuple[str, str]]:
    """Write a page for each public module; returns titles and pages."""
    entries = []
    for module, names in public().items():
        hidden = "".join(f"      {name}: false\n" for name in ("show_root_heading", "show_root_toc_entry"))
        members = "".join(f"        - {name}\n" for name in names)
        text = f"# {module}\n\n::: {module}\n    options:\n{hidden}      members:\n{members}"
        page = f"reference/{module}.md"
        (PAGES / page).parent.mkdir(exist_ok=True)
        (PAGES / page).write_text(text)
        entries.append((module, page))
    return entries


def title(page: str) -> str:
    """The first heading of a page that was written."""
    found = re.search(r"^# (.*)$", (PAGES / page).read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{page} has no heading")
    return found[1].replace("`", "")


def navigation() -> list[dict[str, object]]:
    """The sections of docs/README.md with the pages that they name; then the reference and the decisions."""
    sections: dict[str, list[object]] = {}
    current: list[object] = []
    seen: set[str] = set()

    def entries(pages: list[str]) -> list[object]:
        new = [page for page in dict.fromkeys(pages) if page not in seen]
        seen.update(new)
        return [{title(page): page} for page in new]

    index = ROOT / "docs" / "README.md"
    for line in index.read_text().splitlines():
        if re.fullmatch(r"\w.*:", line):
            current = sections[line.rstrip(":")] = []
        for found in LINK.finditer(line):
            file = (index.parent / found[1]).resolve()
            if file.parent.name == "guides":
                guides = [file, *linked(file)]
                of_guides = [place(each).as_posix() for each in guides if each.parent == file.parent]
                current.append({title(of_guides[0]): entries(of_guides)})
            elif file.parent.name != "adr":
                current += entries([place(file).as_posix()])
    decisions = [place(file).as_posix() for file in sorted((ROOT / "docs" / "adr").glob("*.md"), key=place)]
    named: list[dict[str, object]] = [{heading: pages} for heading, pages in sections.items() if pages]
    return [
        *named,
        {"Names in Python": [{name: page} for name, page in write_reference()]},
        {"Decisions": entries(decisions)},
    ]


def fetch_mermaid() -> bool:
    """Put Mermaid's script among the site's files; returns whether there is npm to get it."""
    kept = ROOT / ".make" / f"{MERMAID}.min.js"
    if not kept.exists():
        if shutil.which("npm") is None:
            return False
        kept.parent.mkdir(exist_ok=True)
        pack = ["npm", "pack", "--silent", MERMAID]
        packed = subprocess.run(pack, cwd=BUILD, check=True, capture_output=True, text=True, timeout=600)
        with tarfile.open(BUILD / packed.stdout.strip()) as tar:
            script = tar.extractfile("package/dist/mermaid.min.js")
            assert script is not None
            kept.write_bytes(script.read())
    (PAGES / "assets").mkdir(exist_ok=True)
    shutil.copy(kept, PAGES / "assets" / "mermaid.min.js")
    return True


def toml(value: object) -> str:
    """A value of texts, lists and tables as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    write_pages()
    shutil.copy(HERE / "site.css", PAGES / "site.css")
    settings: dict[str, object] = {"docs_dir": PAGES.name, "site_dir": "site", "nav": navigation()}
    if fetch_mermaid():
        settings["extra_javascript"] = ["assets/mermaid.min.js"]
    else:
        print("site: there is no npm to get Mermaid with: drawings stay text", file=sys.stderr)
        for page in PAGES.rglob("*.md"):
            page.write_text(page.read_text().replace(DRAWING, "```text\n"))
    added = "".join(f"{name} = {toml(value)}\n" for name, value in settings.items())
    configuration = (HERE / "zensical.toml").read_text().replace("[project]\n", f"[project]\n{added}", 1)
    (BUILD / "zensical.toml").write_text(configuration)


if __name__ == "__main__":
    main()
