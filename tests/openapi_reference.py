"""Write docs/openapi.json from the types of both APIs: python -m tests.openapi_reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from controlplane.admin.openapi import description

PAGE: Final = Path(__file__).parent.parent / "docs" / "openapi.json"


def page_as_it_should_be() -> str:
    return json.dumps(description(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
