"""Writes the tables of docs/settings.md from the declarations: python -m tests.settings_reference."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import controlplane.settings
import proxy.startup.settings
from proxy.config import reference

PAGE: Final = Path(__file__).parent.parent / "docs" / "settings.md"
_GENERATED: Final = "<!-- From here on written by `python -m tests.settings_reference`. -->\n"


def page_as_it_should_be() -> str:
    introduction = PAGE.read_text("utf-8").partition(_GENERATED)[0]
    proxy_keys, control_plane_keys = (
        reference(proxy.startup.settings.Settings),
        reference(controlplane.settings.Settings),
    )
    return f"{introduction}{_GENERATED}\n## Proxy\n\n{proxy_keys}\n## Control plane\n\n{control_plane_keys}"


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
