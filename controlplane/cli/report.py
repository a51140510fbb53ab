"""Commands `audit report`, `audit report-key` and `audit verify-report`: make and check access reports."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import (
    Cli,
    Json,
    OneOrg,
    Open,
    print_facts,
    print_text,
    terminal_width,
    this_user,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, named_as_options
from controlplane.cli.output_file import written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.operations.report_answer import Progress
    from controlplane.operations.report_period import ReportAsked
    from controlplane.report.answer import Answer
    from controlplane.report.manifest import Manifest
    from controlplane.report.report_file import ReportFiles

app = typer.Typer()

# Time until the first byte of a report, which the server sends after it has made the whole report.
LONGEST_SECONDS: Final = 3600.0

_OPTIONS: Final = {"from": "--from", "to": "--to", "class": "--class"}
_MAX_KEY_BYTES: Final = 4096
_LINE_ENDS: Final = (
    "its line ends were changed from LF to CRLF, as a mail program or git's autocrlf does: change them back,"
    " or send the file again in an archive"
)
_TIME_HELP: Final = "an RFC 3339 time, a date, or a time before now such as -15m, -2h or -90d"


@app.command()
def report(
    ctx: typer.Context,
    org: OneOrg,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help=f"Start of the period: {_TIME_HELP} (90 days before --to)."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="T", help=f"End of the period: {_TIME_HELP} (five minutes ago)."),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME",
            help=(
                "Class of data: mail, files, calendars, chats, directory or credentials (mail). For several "
                "classes, repeat --class."
            ),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="File for the signed report, with the suffix .html or .json."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Report who accessed mail, files and other data in a period.

    Exit 1 if audit events of the period may be missing.
    """
    from controlplane.report.report_file import answer_in

    cli: Cli = ctx.obj
    form = _form(output)
    asked = _asked(org, from_, to, classes)
    with named_as_options(_OPTIONS):
        files = _made(cli, asked, form)
    answer = answer_in(files.json)
    if output is not None:
        with written(output) as write:
            write(files.html if form == "html" else files.json)
    if json:
        sys.stdout.flush()
        sys.stdout.buffer.write(files.json)
        sys.stdout.flush()
    else:
        width = terminal_width()
        for line in _lines(answer):
            print_text(line if width is None else folded(line, width))
    if not answer.complete:
        raise typer.Exit(FAILED)


@app.command(name="report-key")
def report_key(
    ctx: typer.Context,
    pem: Annotated[bool, typer.Option("--pem", help="Print the key in PEM, for openssl.")] = False,
    json: Json = False,
) -> None:
    """Print the public key that verifies the signatures of access reports and export manifests."""
    from controlplane.operations.report_key import KeyAsked
    from controlplane.operations.report_key import report_key as shown

    cli: Cli = ctx.obj
    found = cli.call(shown, KeyAsked())
    if json:
        print_facts(found, as_json=True)
    else:
        print_text(found.pem if pem else found.key)


@app.command(name="verify-report")
def verify_report(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Report, manifest, or export that ends with a manifest.")
    ],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Key that `audit report-key` printed, or a file with it."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Exported file that belongs to the manifest."),
    ] = None,
) -> None:
    """Verify the signature of a report or of an export manifest.

    The command `audit verify-report` needs no store.
    """
    from controlplane.report.manifest import apart, is_manifest, verify_manifest
    from controlplane.report.report_file import claimed_key, verify
    from controlplane.report.signed import NotVerified, line_ends_changed, read_key
    from controlplane.report.words import moment

    body = _read(file)
    given = data
    exported = None if data is None else _read(data)
    if data is None and (parts := apart(body)) is not None:
        data, (exported, body) = file, parts
    try:
        if key is None:
            claim = claimed_key(body)
            what = "not verified: this key comes from the file itself, and anyone can write such a file"
            raise CommandFailed(
                FAILED, f"{file}: {what}: {claim}", "Give --key with the key that `audit report-key` prints"
            )
        known = read_key(_key_text(key))
        if given is not None and not is_manifest(body):
            what = f"{file} is a report, and no exported file belongs to a report"
            raise CommandFailed(INVALID_INPUT, f"--data: {what}")
        if is_manifest(body):
            _print_manifest(file, verify_manifest(body, known, exported), data)
            return
        found = verify(body, known)
    except NotVerified as error:
        what = _LINE_ENDS if line_ends_changed(body) else str(error)
        raise CommandFailed(FAILED, f"{file}: the report or manifest is not valid: {what}") from None
    answer = found.report
    print_text(f"{file}: valid: this {found.form} is unchanged since it was signed with {found.key}")
    print_text(f"Organisation {answer.org}, {moment(answer.from_)} to {moment(answer.to)}")
    for line in answer.headline:
        print_text(line)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None


def _print_manifest(file: Path, manifest: Manifest, data: Path | None) -> None:
    print_text(f"{file}: valid: its manifest is unchanged since it was signed with {manifest.key}")
    if data is None:
        print_text(f"The exported file has the SHA-256 {manifest.sha256}: give it with --data to check that")
    else:
        print_text(f"{data}: is the exported file")
    begin = manifest.from_ or manifest.oldest
    span = f"{begin} to {manifest.to}" if begin else f"up to {manifest.to}"
    where = manifest.org or "every organisation that the operator had permission to see"
    print_text(f"{manifest.events:,} events of {where}, {span}, filter: {manifest.filter or 'none'}")
    print_text(f"Exported {manifest.exported_at} by {manifest.exported_by}")
    for note in manifest.notes:
        print_text(f"Note: {note}")
    for head in manifest.heads:
        print_text(f"Head of {head.org}: link {head.number:,}: {head.link}")


def _asked(org: str, from_: str | None, to: str | None, classes: list[str] | None) -> ReportAsked:
    import msgspec

    from controlplane.operations.operation import validation_problem
    from controlplane.operations.report_period import ReportAsked
    from controlplane.report.resource_classes import CLASSES

    for each in classes or ():
        if each not in CLASSES:
            raise CommandFailed(INVALID_INPUT, f"--class: {each!r} is not one of {', '.join(CLASSES)}")
    try:
        return msgspec.convert(
            {"org": org, "from": from_, "to": to, "class": tuple(dict.fromkeys(classes or ("mail",)))},
            ReportAsked,
        )
    except msgspec.ValidationError as error:
        raise CommandFailed(INVALID_INPUT, validation_problem(error, ReportAsked)) from None


def _form(output: Path | None) -> str:
    form = "json" if output is None else output.suffix.lower().removeprefix(".")
    if form not in ("html", "json"):
        raise CommandFailed(INVALID_INPUT, f"--output: {output}: must end in .html or .json")
    return form


def _made(cli: Cli, asked: ReportAsked, form: str) -> ReportFiles:
    from controlplane.operations.report import DownloadReport, report
    from controlplane.report.report_file import ReportFiles, answer_in

    if not cli.is_remote:
        return cli.run(lambda opened: _beside_the_store(opened, asked), reads=True)
    answer: bytes = b""
    found: dict[str, bytes] = {}
    wanted = asked
    for each in dict.fromkeys(("json", form)):
        pieces: list[bytes] = []
        request = DownloadReport(wanted.org, wanted.from_, wanted.to, wanted.classes, each)  # type: ignore[arg-type]
        cli.stream(report, request, pieces.append, LONGEST_SECONDS)
        found[each] = b"".join(pieces)
        if not answer:
            answer = found[each]
            made = answer_in(answer)
            # Fixes the period of the report.
            wanted = type(asked)(asked.org, made.from_, made.to, asked.classes)
    return ReportFiles(found["json"], found.get("html", b""))


async def _beside_the_store(opened: Open, asked: ReportAsked) -> ReportFiles:
    from controlplane.operations.report import signed_report
    from controlplane.operations.report_period import period_of

    period = await period_of(opened.context, this_user(), asked)
    try:
        return await signed_report(opened.context, this_user(), period, _show)
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def _show(progress: Progress) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{progress.doing}: {progress.done:,} of {progress.total:,}")
        sys.stderr.flush()


def _lines(answer: Answer) -> Iterable[str]:
    from controlplane.report.sections import sections

    yield from answer.headline
    for section in sections(answer):
        yield ""
        yield section.title
        for text in section.text:
            yield f"  {text}"
        for row in section.rows:
            yield "  - " + "; ".join(
                f"{name}: {text}" for name, text in zip(section.columns, row, strict=True) if text
            )
        if section.columns and not section.rows:
            yield f"  {section.empty}"


def folded(line: str, width: int) -> str:
    """Return a line wrapped for the terminal, with continuation lines indented like the text."""
    indent = " " * (len(line) - len(line.lstrip(" -")))
    return "\n".join(
        wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    )


def _key_text(given: str) -> str:
    """Return the text of a public key.

    The option `--key` gives the key itself, or the path of a file that contains the key.
    """
    path = Path(given)
    try:
        if len(given) < 64 or "/" in given or path.is_file():
            with path.open("rb") as opened:
                return opened.read(_MAX_KEY_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"--key: {given}: {error.strerror}") from None
    return given
