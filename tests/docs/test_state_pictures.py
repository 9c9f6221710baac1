"""The pictures of states in docs/how-it-works.md are those of the code's tables; `make docs` draws them."""

from __future__ import annotations

from enum import Enum

import pytest

from docs.state_pictures import PAGE, PICTURES, picture, table_of, written
from spark_streams.wire.rabbitmq import connection_commands
from spark_streams.wire.rabbitmq.connection_commands import TRANSITIONS, HandshakeInput, HandshakeState
from tests.docs.pages import blocks


def test_the_pages_pictures_are_those_of_the_code() -> None:
    shown = blocks("docs/how-it-works.md", "mermaid")[-len(PICTURES) :]
    assert shown == [f"{picture(table_of(place))}\n" for _, place in PICTURES]
    assert PAGE.read_text() == written(PAGE.read_text()), "run `make docs`: a picture is not what the code says"


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row[0].name}-{row[1].name}")
def test_a_row_that_leaves_the_table_changes_the_page(
    row: tuple[HandshakeState, HandshakeInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = {other: following for other, following in TRANSITIONS.items() if other != row}
    monkeypatch.setattr(connection_commands, "TRANSITIONS", rest)
    assert written(PAGE.read_text()) != PAGE.read_text()


def test_a_row_that_comes_to_the_table_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**TRANSITIONS, (HandshakeState.OPEN, HandshakeInput.OPEN): HandshakeState.OPEN}
    monkeypatch.setattr(connection_commands, "TRANSITIONS", more)
    assert written(PAGE.read_text()) != PAGE.read_text()


def test_a_page_without_a_place_for_each_picture_is_an_error() -> None:
    page = PAGE.read_text()
    with pytest.raises(ValueError, match=r"docs/how-it-works.md has places for the pictures \[\], expected each of"):
        written(page.replace("<!-- states: ", "<!-- "))
    with pytest.raises(ValueError, match="expected each of"):
        written(page + page)


class Light(Enum):
    RED = "Red"
    GREEN = "Green"
    DARK = "Dark"


class Lever(Enum):
    PUSHED = "pushed"
    PULLED = "pulled, twice"


def test_an_arrow_has_all_inputs_that_lead_the_same_way() -> None:
    table = {
        (Light.RED, Lever.PUSHED): Light.GREEN,
        (Light.RED, Lever.PULLED): Light.GREEN,
        (Light.GREEN, Lever.PUSHED): Light.DARK,
        (Light.GREEN, Lever.PULLED): Light.GREEN,
    }
    assert picture(table).splitlines() == [
        "stateDiagram-v2",
        "  [*] --> Red",
        "  Red --> Green: pushed / pulled, twice",
        "  Green --> Dark: pushed",
        "  Green --> Green: pulled, twice",
        "  Dark --> [*]",
    ]
