"""Write the tables of docs/reference/settings.md from the code: python -m tests.settings_reference."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import controlplane.settings
import proxy.startup.settings
from proxy.config import reference
from proxy.config.declare import sections

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
_GENERATED: Final = "<!-- `python -m tests.settings_reference` writes the lines below from the code. -->\n"


def page_as_it_should_be() -> str:
    introduction = PAGE.read_text("utf-8").partition(_GENERATED)[0]
    of_proxy, of_control_plane = proxy.startup.settings.Settings, controlplane.settings.Settings
    of_both = sections(of_proxy).keys() & sections(of_control_plane).keys()
    return (
        f"{introduction}{_GENERATED}\n## Settings of the proxy\n\n{reference(of_proxy)}\n"
        "## Settings of the control plane\n\n"
        f"{reference(of_control_plane, dict.fromkeys(of_both, ' of the control plane'))}"
    )


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
