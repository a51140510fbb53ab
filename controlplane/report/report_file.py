"""A report as two files, JSON and HTML: made and signed, and verified without a store.

The HTML file holds the signed line of the JSON file within a script element that does not run. The signature
covers the SHA-256 of the rest of the page, so a changed page does not verify. A later release of Graphward
can verify the HTML file too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import Final

import msgspec

from controlplane.report.answer import KIND, Answer
from controlplane.report.sections import Section, sections
from controlplane.report.signed import (
    NotVerified,
    Signer,
    check,
    claimed,
    decode,
    payload_of,
    split,
)
from controlplane.report.words import moment

_OPEN: Final = b'<script type="application/json" id="graphward-report">'
_CLOSE: Final = b"</script>\n</body>\n</html>\n"
_WIDE: Final = frozenset(("Requests", "Events", "Not delivered"))
_LONGEST_QUOTE: Final = 120
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1b1f24;--muted:#57606a;--line:#d0d7de;--back:#fff;--soft:#f6f8fa;
--bad:#9a1c1c;--good:#116329}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--muted:#9da7b3;--line:#30363d;--back:#0d1117;
--soft:#161b22;--bad:#ff9d9d;--good:#6fdd8b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:72rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.about,footer{color:var(--muted)}footer{margin-top:2rem;border-top:1px solid var(--line);padding-top:1rem}
.headline{border-left:4px solid var(--good);background:var(--soft);padding:.75rem 1rem;font-size:1.05rem}
.headline p{margin:.3rem 0}.headline p:first-child{font-weight:600}.incomplete{border-color:var(--bad)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;border-bottom:1px solid var(--line);padding:.35rem .6rem .35rem 0;
overflow-wrap:anywhere;min-width:5rem}th{color:var(--muted);font-weight:600}.number{text-align:right}
code{overflow-wrap:anywhere}@media print{body{max-width:none;margin:0}}
"""


class SignedReport(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """The signed payload of a report file: the report, the key, and the digest of the report's HTML page."""

    kind: str
    key: str
    page_sha256: str = msgspec.field(name="pageSha256")
    report: Answer


class ReportFiles(msgspec.Struct, frozen=True):
    json: bytes
    html: bytes


def make_files(answer: Answer, signer: Signer) -> ReportFiles:
    before = page_of(answer, signer.key)
    signed = SignedReport(KIND, signer.key, sha256(before + _CLOSE).hexdigest(), answer)
    file = signer.sign(payload_of(signed))
    return ReportFiles(file, before + file + _CLOSE)


class Verified(msgspec.Struct, frozen=True):
    key: str
    report: Answer
    form: str  # "page" or "JSON"


def verify(file: bytes, key: str) -> Verified:
    """Return the report in a file, after a check that the given key signed the file.

    Raise NotVerified, with the differences, if the file does not match its signature.
    """
    before, line = _parts(file)
    payload, signature = split(line)
    try:
        check(payload, signature, key)
    except NotVerified as error:
        raise NotVerified(f"{error}{_difference(payload, before)}") from None
    signed = _signed(payload)
    if before is not None and sha256(before + _CLOSE).hexdigest() != signed.page_sha256:
        raise NotVerified(
            f"the HTML page differs from the page that was signed{_difference(payload, before)}"
        )
    return Verified(key, signed.report, "JSON" if before is None else "page")


def claimed_key(file: bytes) -> str:
    """Return the public key that a report file names.

    Anybody can write any key into a file, so the key in a file proves nothing by itself.
    """
    return claimed(split(_parts(file)[1])[0]).key


def answer_in(file: bytes) -> Answer:
    """Return the content of a report's JSON file without a check of the file's signature."""
    return _signed(split(file)[0]).report


def _parts(file: bytes) -> tuple[bytes | None, bytes]:
    """Return the HTML before the signed line in a report file, or None if the file is JSON.

    The second returned value is the signed line of the report's file.
    """
    if file.startswith(b"{"):
        return None, file
    before, mark, rest = file.partition(_OPEN)
    if not mark or not rest.endswith(_CLOSE):
        raise NotVerified("the file is neither the JSON nor the HTML of an audit report")
    return before + mark, rest.removesuffix(_CLOSE)


def _signed(payload: bytes) -> SignedReport:
    kind = claimed(payload).kind
    if kind != KIND:
        raise NotVerified(
            f"the key signed a file that is not an audit report: its kind is {kind[:_LONGEST_QUOTE]}"
        )
    signed: SignedReport = decode(payload, SignedReport)
    return signed


def _difference(payload: bytes, before: bytes | None) -> str:
    """Describe the first line at which a report page differs from its signed data; "" if none is found."""
    if before is None:
        return ""
    try:
        signed = _signed(payload)
        page = page_of(signed.report, signed.key)
    except (NotVerified, LookupError, ValueError):  # the changed data has no page
        return ""
    expected = page.decode().splitlines()
    found = before.decode("utf-8", "replace").splitlines()
    for number, line in enumerate(expected):
        shown = found[number] if number < len(found) else ""
        if shown != line:
            said, expects = _quoted(shown, line), _quoted(line, shown)
            return f"; line {number + 1} of the page says {said} and the data says {expects}"
    return ""


def _quoted(line: str, other: str) -> str:
    """Return the part of `line` around its first difference from `other`, without HTML tags."""
    same = next((at for at, (one, two) in enumerate(zip(line, other, strict=False)) if one != two), 0)
    text = re.sub(r"<[^>]*>", " ", line[max(0, same - 40) :])
    return repr(text.strip()[:_LONGEST_QUOTE])


# Page of a report


def page_of(answer: Answer, key: str) -> bytes:
    """Return the HTML page of a report, up to the signed line."""
    return "\n".join(_lines(answer, key)).encode() + b"\n" + _OPEN


def _lines(answer: Answer, key: str) -> Iterator[str]:
    title = f"Audit report of {answer.org}"
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield (
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none';style-src 'unsafe-inline'\">"
    )
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield "</head>"
    yield "<body>"
    yield f"<h1>{escape(title)}</h1>"
    span = f"{moment(answer.from_)} to {moment(answer.to)}"
    yield f'<p class="about">{escape(span)} · made {escape(moment(answer.made_at))}</p>'
    kind = "headline" if answer.complete else "headline incomplete"
    yield f'<div class="{kind}">'
    yield from (f"<p>{escape(line)}</p>" for line in answer.headline)
    yield "</div>"
    for section in sections(answer):
        yield from _section_lines(section)
    yield "<footer>"
    yield f"<p>Signed with the key <code>{escape(key)}</code>. Compare it with the key that the control plane"
    yield "shows (<code>audit report-key</code>), and check this file with"
    yield "<code>audit verify-report FILE --key KEY</code>, which needs no store.</p>"
    yield "</footer>"


def _section_lines(section: Section) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>"
    for text in section.text:
        yield f"<p>{escape(text)}</p>"
    if not section.columns:
        return
    if not section.rows:
        yield f"<p>{escape(section.empty)}</p>"
        return
    yield '<div class="scroll"><table>'
    classes = ['class="number"' if name in _WIDE else "" for name in section.columns]
    heads = [
        f'<th scope="col" {kind}>{escape(name)}</th>'
        for name, kind in zip(section.columns, classes, strict=True)
    ]
    yield f"<tr>{''.join(heads)}</tr>"
    for row in section.rows:
        cells = [f"<td {kind}>{escape(text)}</td>" for text, kind in zip(row, classes, strict=True)]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"
