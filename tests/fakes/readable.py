"""Access to the checkout and its Python for users who can't read the home directory above the checkout."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from tests.fakes.system import ROOT


def as_if_all_could_read_the_checkout(scratch: Path) -> list[str]:
    """Return the start of a command that makes the checkout and its Python readable to all users.

    A command that begins with the returned words runs in its own mount namespace. The returned list is empty
    unless a directory above the checkout keeps users out, for example a home directory of mode 0700.
    """
    needed = [Path(each).resolve() for each in (ROOT, sys.prefix, sys.base_prefix)]
    closed = {above for each in needed for above in each.parents if not above.stat().st_mode & stat.S_IXOTH}
    if not closed:
        return []
    scratch.mkdir(exist_ok=True)
    script = ["set -e"]
    for at, each in enumerate(needed):
        (scratch / str(at)).mkdir(exist_ok=True)
        script.append(f"mount --bind {each} {scratch / str(at)}")
    script += [f"mount -t tmpfs -o mode=0755 none {each}" for each in sorted(closed)[:1]]
    script += [f"mkdir -p {each}; mount --bind {scratch / str(at)} {each}" for at, each in enumerate(needed)]
    return ["unshare", "--mount", "sh", "-c", "; ".join([*script, 'exec "$@"']), "sh"]
