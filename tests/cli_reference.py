"""Write docs/reference/cli.md from the commands themselves: python -m tests.cli_reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from controlplane.cli import commands
from proxy.__main__ import parser_for

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
PROGRAM: Final = "graphward"
ALIASES: Final = {"proxies": "proxy"}
_OUTPUT: Final = ("--json", "--wide", "--no-trunc")
_PAGES: Final = ("--limit", "--cursor")
_RANGE: Final = re.compile(r" *\[[^\]]*x[<>]=[^\]]*\]| *\[[^\]]*<=x[^\]]*\]")
_INTRODUCTION: Final = """\
# Commands

<!-- `python -m tests.cli_reference` writes this page. -->

Graphward has two programs. `graphward-proxy` is the [proxy](../glossary.md#proxy). `graphward` is the server of the
[control plane](../glossary.md#control-plane), and has a command for each task of an operator.
In a clone of the repository, the names of the programs are `python -m proxy` and `python -m controlplane`.

Each command has the option `--help`. A command that prints a list or a record also has the following options:

| Option | Meaning |
|---|---|
| `--json` | Print JSON, for programs. |
| `--wide` | Show every column, including IDs. |
| `--no-trunc` | Wrap long paths over several lines. By default, … replaces the middle of a long path. |
| `--limit` | Number of rows per page. |
| `--cursor` | Cursor that the previous page printed. The command prints the next page. |

[Output of commands](terminal-output.md) describes the tables, times and JSON that commands print.

## Exit status

| Status | Meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The operation failed, or a check found a fault. |
| 2 | The command line, the settings or the input are invalid. |
| 130 | Ctrl-C interrupted the command. |

[Exit statuses](errors.md#exit-statuses) lists the commands whose exit status distinguishes more than success and failure.

"""
_PROXY: Final = """\
## graphward-proxy

`graphward-proxy` starts the proxy, or checks its settings:

```sh
graphward-proxy --config FILE
graphward-proxy --config FILE --check
graphward-proxy --config FILE --doctor [--json]
```

| Option | Meaning |
|---|---|
"""
_CONTROL_PLANE: Final = """
## graphward

`graphward` starts the control plane, or runs an operator's command:

```sh
graphward --config FILE
graphward --config FILE COMMAND [ARGUMENTS]
graphward --url URL --token-file FILE COMMAND [ARGUMENTS]
```

With `--config`, a command opens the store that the settings file names. With `--url`, a command calls the admin API of a running
control plane with an API token. The output of a command is the same with `--config` and with `--url`. `proxies` is another name
for the command `proxy`.

| Option | Meaning |
|---|---|
"""


def page_as_it_should_be() -> str:
    root: Any = commands()
    lines = [_INTRODUCTION + _PROXY.rstrip("\n"), *_proxy_rows(), _CONTROL_PLANE.rstrip("\n")]
    context = root.context_class(root, info_name=PROGRAM)
    lines += [*_rows(root, context, ())]
    for name, command in root.commands.items():
        if name in ALIASES:
            continue
        if hasattr(command, "commands"):
            lines += ["", f"## graphward {name}", "", _sentence(command.help)]
        lines += _described(name, command, context)
    return "\n".join(lines) + "\n"


def _proxy_rows() -> Iterator[str]:
    for action in parser_for("graphward-proxy")._actions:
        values = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        option = f"{action.option_strings[-1]} {values}".strip().replace("|", "\\|")
        yield f"| `{option}` | {_sentence(action.help or '')} |"


def _described(path: str, command: Any, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=parent)
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _described(f"{path} {name}", each, context)
        return
    yield from ("", f"### graphward {path}", "", _sentence(command.help), "")
    pieces = (_piece(each) for each in command.collect_usage_pieces(context))
    yield from ("```sh", " ".join([PROGRAM, path, *pieces]), "```")
    rows = list(_rows(command, context, (*_OUTPUT, *_PAGES)))
    if rows:
        yield from ("", "| Argument or option | Meaning |", "|---|---|", *rows)
    also = [each for each in (*_OUTPUT, *_PAGES) if any(each in param.opts for param in command.params)]
    if also:
        noun = "option" if len(also) == 1 else "options"
        yield from (
            "",
            f"`{PROGRAM} {path}` has the output {noun} {', '.join(f'`{each}`' for each in also)}.",
        )


def _rows(command: Any, context: Any, left_out: tuple[str, ...]) -> Iterator[str]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None or any(each in (*left_out, "--help") for each in param.opts):
            continue
        name, meaning = (" ".join(text.split()) for text in record)
        is_argument = param.param_type_name == "argument"
        name = re.sub(r" <.*>$", "", name) if is_argument else re.sub(r"<(.*)>$", _value, name)
        yield f"| `{_cell(name)}` | {_cell(_sentence(re.sub(_RANGE, '', meaning)))} |"


def _value(found: re.Match[str]) -> str:
    """Return the word that stands for an option's value in a usage line, such as `TEXT` or the choices."""
    kind = found[1].partition(" ")[0]
    return {"str": "TEXT", "int": "N", "float": "N", "path": "FILE"}.get(kind, found[1])


def _piece(text: str) -> str:
    """Return a piece of a command's usage line, without its doubled brackets."""
    doubled = re.fullmatch(r"\[(\[[^\]]*\](?:\.\.\.)?)\](?:\.\.\.)?", text)
    return doubled[1] if doubled else re.sub(r"^{([A-Z|]+)}", r"\1", text)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _sentence(text: str) -> str:
    """Return a help text as sentences.

    The first sentence of the returned text starts with a capital letter and ends with a full stop. If the
    help text has a part in brackets, such as a default, this part becomes the last sentence.
    """
    words, _, extra = " ".join(text.split()).partition("  [")
    found = re.fullmatch(r"(.*?) ?\[((?:default|required|env)[^\]]*)\]", words)
    words, extra = (found[1], found[2]) if found else (words, extra)
    words = f"{words[:1].upper()}{words[1:]}"
    if words and words[-1] not in ".:)":
        words += "."
    extra = {"required": "Required."}.get(extra, f"{extra[:1].upper()}{extra[1:]}." if extra else "")
    return f"{words} {extra}".strip() or "–"


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
