"""The pictures of the pages can be drawn: mermaid's own parser takes them, where Node.js and npm's packages are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = "docs/how-it-works.md"
INSTALLED = ROOT / ".make" / "mermaid"
"""Outside git."""
VERSIONS = ("mermaid@11.17.2", "jsdom@29.1.1")
PARSE = """
import { JSDOM } from "jsdom";
const page = new JSDOM("<body></body>");
globalThis.window = page.window;
globalThis.document = page.window.document;
const { default: mermaid } = await import("mermaid");
const pictures = JSON.parse(await new Response(process.stdin).text());
const found = [];
for (const picture of pictures) {
  try { found.push((await mermaid.parse(picture)).diagramType); } catch (fault) { found.push(fault.message); }
}
console.log(JSON.stringify(found));
"""


def parsed(pictures: list[str]) -> list[str]:
    """What each picture is, or what is wrong with it."""
    done = INSTALLED / "installed.txt"
    if not done.exists() or done.read_text() != str(VERSIONS):
        INSTALLED.mkdir(parents=True, exist_ok=True)
        (INSTALLED / "package.json").write_text('{"private": true, "type": "module"}')
        install = ["npm", "install", "--no-fund", "--no-audit", *VERSIONS]
        ran = subprocess.run(install, cwd=INSTALLED, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, f"{' '.join(install)} in {INSTALLED} failed: {ran.stderr}"
        done.write_text(str(VERSIONS))
    (INSTALLED / "parse.js").write_text(PARSE)
    command = ["node", str(INSTALLED / "parse.js")]
    ran = subprocess.run(command, input=json.dumps(pictures), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found: list[str] = json.loads(ran.stdout)
    return found


@pytest.mark.nightly  # it installs 180 MB
@pytest.mark.node
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed: there is no node on the PATH")
def test_the_parser_of_mermaid_takes_them() -> None:
    pictures = blocks(PAGE, "mermaid")
    kinds = {"flowchart": "flowchart-v2", "sequenceDiagram": "sequence", "stateDiagram-v2": "stateDiagram"}
    assert parsed(pictures) == [kinds[picture.split()[0]] for picture in pictures]
    (fault,) = parsed(["flowchart LR\n  subgraph x\n  a --> b\n"])
    assert "Parse error" in fault


def test_the_pictures_are_of_kinds_that_are_drawn() -> None:
    """What breaks a picture most often, without mermaid."""
    pictures = blocks(PAGE, "mermaid")
    assert len(pictures) >= 5
    for picture in pictures:
        assert picture.split()[0] in ("flowchart", "sequenceDiagram", "stateDiagram-v2")
        closed = re.findall(r"^ *end$", picture, re.MULTILINE)
        assert picture.count("subgraph") == len(closed)
        assert len(re.findall(r"\bend\b", picture)) == len(closed), "the word breaks a picture elsewhere"
