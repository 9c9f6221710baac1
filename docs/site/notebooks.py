"""A notebook as a page: its texts, its code, and what its cells have shown, pictures as files beside the page."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path


def page_of_notebook(file: Path, folder: Path) -> str:
    """Return the page's text; writes the pictures into a folder."""
    pictures = 0
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\((\w+)\.ipynb\)", r"(\1.ipynb.md)", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {})
            if "image/png" in shown:
                pictures += 1
                name = f"{file.stem}-{pictures}.png"
                (folder / name).write_bytes(base64.b64decode(shown["image/png"]))
                parts.append(f"![what the cell draws]({name})")
            elif text := "".join(output.get("text", "")) or "".join(shown.get("text/plain", "")):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
