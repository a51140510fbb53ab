"""Each block of commands in docs/how-to/install.md says whether a test runs it.

./dev wheels runs those blocks.
"""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.test_containers import COMPOSITION
from tests.wheels.install_page import PAGE, Block, blocks


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"line {block.line}")
def test_a_block_says_whether_a_test_runs_it(block: Block) -> None:
    place = f"{PAGE.name}:{block.line}"
    if block.kind == "sh":
        assert block.is_run or block.comment.removeprefix("not run: ") not in ("", block.comment), place
        parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert (parsed.returncode, parsed.stderr) == (0, ""), place
    else:
        assert block.kind == "yaml", f"{place}: say what it is, after the three backquotes"


def test_most_of_the_way_with_systemd_is_run() -> None:
    text = PAGE.read_text("utf-8")
    ends = text.count("\n", 0, text.index("## Install with containers"))
    ways = [block for block in blocks() if block.line < ends]
    assert [block.comment for block in ways if not block.is_run] == [
        "not run: it asks for a password at a terminal",
        "not run: it needs a second release",
    ]
    assert len(ways) > 15


def test_what_the_page_adds_to_the_composition_fits_it() -> None:
    (added,) = [yaml.safe_load(block.text) for block in blocks() if block.kind == "yaml"]
    assert set(added["services"]) < set(COMPOSITION["services"])
    assert set(added["services"]["proxy"]["secrets"]) == set(added["secrets"])
    assert not set(added["secrets"]) & set(COMPOSITION["secrets"])
    assert {each["file"].partition("/")[0] for each in added["secrets"].values()} == {"secrets"}
