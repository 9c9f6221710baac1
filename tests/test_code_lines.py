"""The counter of code lines that ``test_rooms.py`` judges by: what is a line of code, and what is none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.code_lines import GENERATED, code_lines, product_code

CASES = {
    "nothing": ("", 0),
    "blanks and comments": ("\n# why\n\n", 0),
    "a comment behind code": ("x = 1  # why\n", 1),
    "docstrings of module, class and function": (
        '''
        """Says

        much."""

        class A:
            """One."""

            def f(self):
                \'\'\'Two,
                on two lines.\'\'\'
                return 1
        ''',
        3,
    ),
    "a text that documents the attribute above it": ('LIMIT = 3\n"""Most\nof them."""\n', 1),
    "a docstring beside its function": ('def f(): "documents"\n', 1),
    "a docstring behind letters of several bytes": ('def größe(): "documents ü"; return 1\n', 1),
    "a text of several lines that is a value": ('x = """a\n\nb"""\n', 3),
    "a text of several lines that is an argument": ('f(\n    """a\n    b""",\n)\n', 4),
    "an f-string of several lines, which no docstring is": ('f"""a\n{x}\n\nb"""\n', 4),
    "bytes, which no docstring are": ('b"a"\n', 1),
    "texts that are joined in brackets": ('x = (\n    "a"\n    "b"\n)\n', 4),
    "imports": ("import a\nfrom b import (\n    c,\n    d,\n)\n", 0),
    "imports within a function": ("def f():\n    import a\n    return a\n", 2),
    "imports for types": (
        "if TYPE_CHECKING:\n    from a import (\n        b,\n    )\nelse:\n    b = None\n",
        3,
    ),
    "an import and code on one line": ("import a; a.f()\n", 1),
    "a statement with a backslash": ("x = 1 + \\\n    2\n", 2),
    "brackets on lines of their own, and a comment between": ("f(\n    # why\n    1,\n\n)\n", 3),
    "a decorator": ("@d\ndef f(): ...\n", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_line_of_code_is(case: str) -> None:
    text, expected = CASES[case]
    assert code_lines(textwrap.dedent(text)) == expected


def test_the_product_is_what_is_shipped_but_what_was_generated(tmp_path: Path) -> None:
    counted = ("pyspark_a.py", "spark_streams/a.py", "spark_streams/b/c.py", "sources/a.py", "sinks/b.py", "conf/a.py")
    for name in (*counted, GENERATED, "setup.py", "tests/a.py", "spark_streams/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert product_code(tmp_path) == dict.fromkeys(counted, 1)
