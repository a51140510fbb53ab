"""Writes the tables of docs/settings.md from the declarations: python -m tests.settings_reference."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from proxy.config import reference
from proxy.settings import Settings

PAGE: Final = Path(__file__).parent.parent / "docs" / "settings.md"
_GENERATED: Final = "<!-- From here on written by `python -m tests.settings_reference`. -->\n"


def page_as_it_should_be() -> str:
    introduction = PAGE.read_text("utf-8").partition(_GENERATED)[0]
    return f"{introduction}{_GENERATED}\n## Proxy\n\n{reference(Settings)}"


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
