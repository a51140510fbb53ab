"""OpenAPI 3.1 description of the admin API and the agent API, made from the types of API messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from controlplane.admin.csrf import CSRF_HEADER
from controlplane.admin.sessions import SESSION_PATH, SessionFacts, SignIn
from controlplane.errors import status_of
from controlplane.ingest import Batch
from controlplane.operations.operation import Operation, Request, Stream
from controlplane.operations.table import OPERATIONS, STREAMS
from controlplane.reports import Heartbeat, Metrics
from proxy.wire.models import (
    AUDIT_PATH,
    ENROL_PATH,
    HEARTBEAT_PATH,
    HELD_SCHEMAS_HEADER,
    METRICS_PATH,
    SYNC_PATH,
    AuditAnswer,
    EnrolRequest,
    EnrolResponse,
    RenewRequest,
    SyncAnswer,
)
from proxy.wire.signing import API_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER

ROOT: Final = "/admin/v1"
_TEXT: Final = {"type": "string"}
# Error codes of each API
ADMIN_CODES: Final = (
    "invalidRequest", "unauthenticated", "forbidden", "notFound", "requestTimeout", "alreadyExists",
    "conflict", "payloadTooLarge", "tooManyAttempts", "unavailable",
)  # fmt: skip
AGENT_CODES: Final = (
    "invalidPayload", "mixedOrganisations", "invalidSignature", "timestampOutOfRange", "unknownApiKey",
    "notAuthorisedForTenant", "requestTimeout", "batchExpired", "batchTooLarge", "payloadTooLarge",
    "rateLimited", "unavailable",
)  # fmt: skip
_CODES_OF_BATCHES: Final = frozenset(
    ("mixedOrganisations", "notAuthorisedForTenant", "batchExpired", "batchTooLarge")
)
ENROLMENT_CODES: Final = (
    "invalidPayload", "invalidEnrolmentToken", "invalidSignature", "timestampOutOfRange", "unknownApiKey",
    "forbidden", "requestTimeout", "payloadTooLarge", "rateLimited", "unavailable",
)  # fmt: skip

_Json = dict[str, Any]


class Taken(msgspec.Struct):
    """Response to a report that the control plane accepted."""

    status: Literal["ok"]


class _ErrorFacts(msgspec.Struct, omit_defaults=True):
    code: str
    message: str
    problems: tuple[str, ...] = ()  # sentences for people, if there are several problems


class Error(msgspec.Struct):
    """Response to any request that fails."""

    error: _ErrorFacts


def description() -> _Json:
    """Return the complete OpenAPI document."""
    schemas = _Schemas()
    paths: dict[str, _Json] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(ROOT + operation.path, {})
        item[operation.method.lower()] = _operation(operation, schemas)
    for stream in STREAMS:
        paths.setdefault(ROOT + stream.path, {})["get"] = _stream(stream, schemas)
    paths[ROOT + SESSION_PATH] = _sessions(schemas)
    paths |= _agent_api(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Graphward control plane",
            "version": "1",
            "description": "The admin API, for operators and their programs (listener [Console]), and the "
            "agent API, for proxies (listener [ControlPlane]).",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


_SECURITY_SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "An API token of an operator."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-graphward",
        "description": f"A browser's session. A request that makes a change also has {CSRF_HEADER}.",
    },
    "enrolmentToken": {"type": "http", "scheme": "bearer", "description": "An enrolment token."},
    "apiKey": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER},
    "timestamp": {"type": "apiKey", "in": "header", "name": TIMESTAMP_HEADER},
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": SIGNATURE_HEADER,
        "description": "Lowercase hex HMAC-SHA256 over the timestamp, a full stop and the body's bytes.",
    },
}


class _Schemas:
    """JSON schemas of all types in the OpenAPI document.

    The schemas of all types are made together, so that types with the same name get longer names.
    """

    def __init__(self) -> None:
        asked: list[type] = [*(each.request for each in OPERATIONS), *(each.request for each in STREAMS)]
        responded: list[type] = [each.response for each in OPERATIONS]
        sessions, agents = (SignIn, SessionFacts), (SyncAnswer, AuditAnswer, Heartbeat, Metrics, Batch, Taken)
        enrolment = (EnrolRequest, RenewRequest, EnrolResponse)
        types = list(dict.fromkeys([*asked, *responded, *sessions, *agents, *enrolment, Error]))
        references, components = msgspec.json.schema_components(
            types, ref_template="#/components/schemas/{name}"
        )
        self._references = dict(zip(types, references, strict=True))
        requests = {self._references[each]["$ref"] for each in asked}
        self._requests = {ref: components.pop(ref.rpartition("/")[2]) for ref in requests}
        self.components: _Json = {name: _plain(schema) for name, schema in components.items()}

    def reference(self, cls: type) -> _Json:
        return dict(self._references[cls])

    def members(self, cls: type[Request]) -> tuple[_Json, frozenset[str]]:
        """Return the JSON schemas of the members of an API request, and the names of the required members.

        Each of these members is sent in the path, the query or the JSON body of the HTTP request.
        """
        schema = self._requests[self._references[cls]["$ref"]]
        return _plain(schema["properties"]), frozenset(schema["required"])


def _plain(schema: Any) -> Any:
    """Return a JSON schema with one-line descriptions.

    The schema has no titles, because titles repeat type names.
    """
    if isinstance(schema, dict):
        named = {name: _plain(value) for name, value in schema.items()}
        if isinstance(named.get("title"), str):
            del named["title"]
        if isinstance(named.get("description"), str):
            named["description"] = re.sub(r"\s+", " ", named["description"]).strip()
        return named
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema


# The admin API


def _operation(operation: Operation[Any, Any], schemas: _Schemas) -> _Json:
    members, required = schemas.members(operation.request)
    in_path = re.findall(r"{(\w+)}", operation.path)
    others = {name: schema for name, schema in members.items() if name not in in_path}
    described: _Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.name.partition(".")[0]],
        "security": [{"token": []}, {"session": []}],
        "parameters": [_parameter(name, "path", members[name], True) for name in in_path],
        "responses": _responses(_json_content(schemas.reference(operation.response)), ADMIN_CODES, schemas),
    }
    if operation.method in ("GET", "DELETE"):
        described["parameters"] += _in_query(others, required)
    else:
        body = {
            "type": "object",
            "properties": others,
            "required": [name for name in others if name in required],
            "additionalProperties": False,
        }
        described["requestBody"] = {"required": True, "content": _json_content(body)}
    return described


def _stream(stream: Stream[Any], schemas: _Schemas) -> _Json:
    members, required = schemas.members(stream.request)
    return {
        "operationId": stream.name,
        "summary": stream.summary,
        "tags": [stream.name.partition(".")[0]],
        "security": [{"token": []}, {"session": []}],
        "parameters": _in_query(members, required),
        "responses": _responses(
            {media_type: {"schema": _TEXT} for media_type in stream.media_types}, ADMIN_CODES, schemas
        ),
    }


def _in_query(members: Mapping[str, _Json], required: frozenset[str]) -> list[_Json]:
    return [_parameter(name, "query", schema, name in required) for name, schema in members.items()]


def _parameter(name: str, place: str, schema: _Json, required: bool) -> _Json:
    """Return the OpenAPI description of a path or query parameter.

    A parameter can't be null, so a request omits a parameter instead of sending null.
    """
    schema = {key: value for key, value in schema.items() if (key, value) != ("default", None)}
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each != {"type": "null"}]
        others = {key: value for key, value in schema.items() if key != "anyOf"}
        schema = {**kinds[0], **others} if len(kinds) == 1 else {**others, "anyOf": kinds}
    if place == "path" and schema == _TEXT:
        schema = {**_TEXT, "minLength": 1}
    return {"name": name, "in": place, "required": required, "schema": schema}


def _sessions(schemas: _Schemas) -> _Json:
    facts = _json_content(schemas.reference(SessionFacts))
    common = {"tags": ["session"], "security": [{"token": []}, {"session": []}]}
    return {
        "post": {
            "operationId": "session.begin",
            "summary": "Sign in with name and password; the response sets the session's cookie.",
            "tags": ["session"],
            "security": [],
            "requestBody": {"required": True, "content": _json_content(schemas.reference(SignIn))},
            "responses": _responses(facts, ADMIN_CODES, schemas),
        },
        "get": {
            **common,
            "operationId": "session.show",
            "summary": "Show the operator that is signed in, and the CSRF token of the session.",
            "responses": _responses(facts, ADMIN_CODES, schemas),
        },
        "delete": {
            **common,
            "operationId": "session.end",
            "summary": "Sign out.",
            "responses": {
                **_responses({}, ADMIN_CODES, schemas, success=None),
                "204": {"description": "The session has ended."},
            },
        },
    }


# The agent API


def _agent_api(schemas: _Schemas) -> dict[str, _Json]:
    audit = _signed(
        "audit",
        "Store a batch of audit events. The control plane accepts a batch ID only once.",
        AuditAnswer,
        schemas,
        body=Batch,
        success=202,
    )
    sync = _signed(
        "sync",
        "Return the organisations, applications and rulesets of the proxy that signed the request.",
        SyncAnswer,
        schemas,
    )
    sync["parameters"] = [
        _parameter("If-None-Match", "header", _TEXT, False),
        _parameter(HELD_SCHEMAS_HEADER, "header", _TEXT, False),
    ]
    sync["responses"]["304"] = {"description": "The rules version in If-None-Match is the newest version."}
    return {
        SYNC_PATH: {"get": sync},
        AUDIT_PATH: {"post": audit},
        HEARTBEAT_PATH: {
            "post": _signed("heartbeat", "Report the state of a proxy.", Taken, schemas, body=Heartbeat)
        },
        METRICS_PATH: {
            "post": _signed(
                "metrics",
                "Report the counters of a proxy for a time window.",
                Taken,
                schemas,
                body=Metrics,
            )
        },
        ENROL_PATH: {"post": _enrolment(schemas)},
    }


def _enrolment(schemas: _Schemas) -> _Json:
    bodies = [schemas.reference(EnrolRequest), schemas.reference(RenewRequest)]
    content = _json_content(schemas.reference(EnrolResponse))
    return {
        "operationId": "agent.enrol",
        "summary": "Add a proxy with an enrolment token, or renew the keys of the proxy that signed the"
        " request.",
        "tags": ["agent"],
        "security": [{"enrolmentToken": []}, {"apiKey": [], "timestamp": [], "signature": []}],
        "requestBody": {"required": True, "content": _json_content({"oneOf": bodies})},
        "responses": {
            "201": {"description": "Added.", "content": content},
            **_responses(content, ENROLMENT_CODES, schemas),
        },
    }


def _signed(
    name: str,
    summary: str,
    response: type,
    schemas: _Schemas,
    *,
    body: type | None = None,
    success: int = 200,
) -> _Json:
    codes = [each for each in AGENT_CODES if name == "audit" or each not in _CODES_OF_BATCHES]
    described: _Json = {
        "operationId": f"agent.{name}",
        "summary": summary,
        "tags": ["agent"],
        "security": [{"apiKey": [], "timestamp": [], "signature": []}],
        "responses": _responses(_json_content(schemas.reference(response)), codes, schemas, success=success),
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": _json_content(schemas.reference(body))}
    return described


# Parts of both APIs


def _json_content(schema: _Json) -> _Json:
    return {"application/json": {"schema": schema}}


def _responses(
    content: _Json, codes: Iterable[str], schemas: _Schemas, *, success: int | None = 200
) -> dict[str, _Json]:
    error = _json_content(schemas.reference(Error))
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(status_of(code), []).append(code)
    errors = {
        str(status): {"description": ", ".join(names), "content": error}
        for status, names in by_status.items()
    }
    return (
        errors if success is None else {str(success): {"description": "Done.", "content": content}, **errors}
    )
