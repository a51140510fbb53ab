"""Write docs/reference/api.md from the descriptions of both APIs: python -m tests.api_reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from controlplane.admin.openapi import description
from tests.api_texts import MEMBERS, PERMISSIONS

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
_AGENT: Final = "agent"
_Json = dict[str, Any]
_TAGS: Final = {
    "session": "Sessions",
    "org": "Organisations",
    "proxy": "Proxies: changes",
    "fleet": "Proxies: state",
    "app": "Applications",
    "ruleset": "Rulesets",
    "proposal": "Proposals",
    "model": "Schemas of graph APIs",
    "kill": "Emergency stops",
    "unkill": "Emergency stops: lift",
    "audit": "Audit events",
    "sink": "Sinks",
    "operator": "Operators",
    "record": "Operator log",
    "deletion": "Deletions",
    "config": "Configuration as code",
    _AGENT: "Agent API",
}
_INTRODUCTION: Final = """\
---
search:
  boost: 0.5
---

# HTTP APIs

<!-- `python -m tests.api_reference` writes this page. -->

The [control plane](../glossary.md#control-plane) has two HTTP APIs, the admin API and the agent API. This page lists each
operation of the two APIs of the control plane. [openapi.json](../openapi.json) describes all operations of the control plane in
OpenAPI 3.1. A running control plane serves this OpenAPI description at `GET /admin/v1/openapi.json`.

| API | Path | For | Listener | Authentication |
|---|---|---|---|---|
| Admin API | `/admin/v1` | operators and their programs | [`Console.Listen`](settings.md#console) | API token, or the session of a browser |
| Agent API | `/api/v1` | proxies | [`ControlPlane.Listen`](settings.md#controlplane) | API key and signature |

[Use the admin API](../how-to/use-the-admin-api.md) has examples of requests. Each operation of the admin API has a
[command](cli.md) with the same effect. With `--json`, a command prints the JSON response of
its operation.

## Requests

- In the path of an operation, braces contain the name of a request parameter. In GET and DELETE requests, every parameter that
  is not part of the path is in the query. In POST and PUT requests, every parameter that is not part of the path is in the
  JSON body.
- If a request has an unknown parameter, the control plane responds with 400 `invalidRequest`.
- A program sends its API token as the bearer token in the header `Authorization`. A browser sends the cookie `__Host-graphward`, and
  also the header `X-CSRF-Token` with each request that changes something.
- A signed request of a proxy has the headers `X-Api-Key`, `X-Timestamp` and `X-Hmac-Signature`. The signature is
  the HMAC-SHA256 of the timestamp, a full stop and the request body, in lower-case hexadecimal.

## Responses

A response of the control plane is JSON, unless this page names another type for the operation.
[Errors](errors.md#responses-of-the-control-plane) lists all error codes. *Permission* names the lowest role that an operator needs for the
operation (viewer, editor or admin).

"""
_SCHEMAS: Final = """\
## Schemas

This section describes the objects in requests and responses, in the order of their names.

"""


def page_as_it_should_be() -> str:
    document = description()
    by_tag: dict[str, list[str]] = {tag: [] for tag in _TAGS}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            lines = _operation(method.upper(), path, operation)
            by_tag[operation["tags"][0]].append("\n".join(lines))
    groups = (f"## {_TAGS[tag]}\n\n" + "\n".join(entries) for tag, entries in by_tag.items())
    schemas = document["components"]["schemas"].items()
    return (
        _INTRODUCTION
        + "\n".join(groups)
        + "\n"
        + _SCHEMAS
        + "\n".join("\n".join(_schema(name, schema)) for name, schema in schemas)
    )


def _operation(method: str, path: str, operation: _Json) -> Iterator[str]:
    name = operation["operationId"]
    yield f"### {name}\n"
    yield f"{operation['summary']}\n"
    yield f"```http\n{method} {path}\n```\n"
    if name in PERMISSIONS:
        yield f"- **Permission for `{name}`:** {PERMISSIONS[name]}"
    else:
        yield f"- **Authentication of `{name}`:** {_authentication(operation)}"
    yield f"- **Response of `{name}`:** {_responses(operation)}"
    codes = [
        f"{status} `{code}`"
        for status, response in operation["responses"].items()
        if status >= "400"
        for code in response["description"].split(", ")
    ]
    yield f"- **Errors of `{name}`:** {', '.join(codes)}\n" if _is_special(name) else ""
    rows = [*_parameters(name, operation), *_body(name, operation)]
    if rows:
        yield "| Member | In | Type | Required | Meaning |\n|---|---|---|---|---|"
        yield from rows
        yield ""


def _is_special(name: str) -> bool:
    """Return True if the admin API operation has errors that the API's other operations lack."""
    return name.startswith(f"{_AGENT}.")


def _authentication(operation: _Json) -> str:
    ways = [
        "signature of a proxy" if "signature" in way else "enrolment token" for way in operation["security"]
    ]
    return ", or ".join(ways)


def _responses(operation: _Json) -> str:
    found = []
    for status, response in operation["responses"].items():
        if status >= "400":
            continue
        kinds = [
            _type(content["schema"]) if media_type == "application/json" else f"`{media_type}`"
            for media_type, content in response.get("content", {}).items()
        ]
        what = f"with {' or '.join(kinds)}" if kinds else f"({_as_clause(response['description'])})"
        found.append(f"{status} {what}")
    return ", or ".join(found)


def _as_clause(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")


def _parameters(name: str, operation: _Json) -> Iterator[str]:
    for each in operation.get("parameters", ()):
        yield _row(name, each["name"], each["in"], each["schema"], required=each["required"])


def _body(name: str, operation: _Json) -> Iterator[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    for member, each in schema.get("properties", {}).items():
        yield _row(name, member, "body", each, required=member in schema["required"])
    if "$ref" in schema:
        yield f"| – | body | {_type(schema)} | yes | The whole body. |"
    for each in schema.get("oneOf", ()):
        yield f"| – | body | {_type(each)} | yes | The whole body, in one of these forms. |"


def _row(operation: str, member: str, place: str, schema: _Json, *, required: bool) -> str:
    default = schema.get("default")
    shown = f" Default: `{_text(default)}`." if default not in (None, "", [], False) else ""
    meaning = meaning_of(operation, member, schema)
    return f"| `{member}` | {place} | {_type(schema)} | {'yes' if required else 'no'} | {_cell(meaning + shown)} |"


def meaning_of(operation: str, member: str, schema: _Json) -> str:
    """Return the description of a field in an API request: from its JSON schema, or from `api_texts`."""
    own = described(schema)
    return own or MEMBERS.get(f"{operation}.{member}") or MEMBERS[member]


def described(schema: _Json) -> str:
    """Return the description in a JSON schema, or in one of its `anyOf` alternatives; "" if it has none."""
    kinds = (schema, *schema.get("anyOf", ()))
    found = next((each["description"] for each in kinds if "description" in each), "")
    return f"{found[:1].upper()}{found[1:]}".rstrip(".") + "." if found else ""


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _type(schema: _Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_slug(name)})"
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "oneOf" in schema:
        return " or ".join(_type(each) for each in schema["oneOf"])
    if "enum" in schema:
        values = [str(each) for each in schema["enum"] if each is not None]
        plain = [each for each in values if f"-{each}" not in values or each.startswith("-")]
        shown = plain if len(plain) == len(values) else [each for each in values if not each.startswith("-")]
        return ", ".join(f"`{each}`" for each in shown)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if kind == "object":
        extra = schema.get("additionalProperties")
        return f"map to {_type(extra)}" if isinstance(extra, dict) and extra else "object"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = (
        f", {low}–{high}" if low is not None and high is not None else f" ≥ {low}" if low is not None else ""
    )
    words = {
        "string": "text",
        "boolean": "true/false",
        "number": "number",
        "integer": "integer",
        "null": "null",
    }
    return words.get(str(kind), str(kind)) + bounds


def _slug(name: str) -> str:
    return "schema-" + re.sub(r"[^\w -]", "", name).lower()


def _schema(name: str, schema: _Json) -> Iterator[str]:
    yield f"### Schema {name}\n"
    if "description" in schema and not schema["description"].startswith(f"{name}("):
        yield f"{described(schema)}\n"
    members = schema.get("properties", {})
    if not members:
        yield f"Type: {_type(schema)}.\n"
        return
    has_texts = any(described(each) for each in members.values())
    yield "| Member | Type | Required |" + (" Meaning |" if has_texts else "")
    yield "|---|---|---|" + ("---|" if has_texts else "")
    for member, each in members.items():
        required = "yes" if member in schema.get("required", ()) else "no"
        meaning = f" {_cell(described(each)) or '–'} |" if has_texts else ""
        yield f"| `{member}` | {_cell(_type(each))} | {required} |{meaning}"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
