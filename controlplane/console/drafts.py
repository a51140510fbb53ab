"""Pages at /rulesets/…/edit: the editor of a draft ruleset, which can be tested before its publication.

The draft ruleset exists only in the HTML form of the page. Each response to an action on a draft contains the
complete form, so that an error loses no text. If the browser runs scripts, a script also stores the form in
the browser, and requests only the part of the page that changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from msgspec import json

from controlplane.console import replaying, ruleset_text
from controlplane.console.choices import choice_of_apps
from controlplane.console.pages import Page, PageRequest, Redirect, Refusal, page, reasons
from controlplane.console.rulesets import (
    CRUMB,
    ENFORCED_LATER,
    PROPOSED,
    Difference,
    bound_to,
    difference,
    place_of,
)
from controlplane.operations import dry_runs, rulesets
from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.allowing_rule import with_allowing_rule
from controlplane.operations.apps import AppFacts
from controlplane.operations.completing import CompleteRuleset, complete
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import (
    AnswerSample,
    CheckRuleset,
    ExplainRequest,
    ProblemFacts,
    RunCases,
    Source,
)
from controlplane.operations.har_files import (
    MOST_CHARACTERS,
    ReplayHar,
    SuggestFromHar,
    replay_har,
    suggest_har,
)
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.routes import ListRoutes, list_routes
from controlplane.operations.rulesets import ApplyRuleset, RulesetText, ShowRuleset
from controlplane.operations.suggestions import SuggestRuleset, suggest_ruleset
from controlplane.operations.worker_process import run_change, run_for_page, run_trial
from controlplane.store.interface import NotFound, Org, StoreBusy, StoreError

METHODS: Final = tuple((each, each) for each in ("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"))
HOURS: Final = (("1", "hour"), ("6", "6 hours"), ("24", "24 hours"), ("72", "3 days"), ("168", "week"))
_GZIP: Final = "\x1f\N{REPLACEMENT CHARACTER}"  # start of a gzip file, decoded as text
_EVENTS_OF_A_SUGGESTION: Final = 200_000  # newest events to read, which takes a few seconds
_NEW_TEXT: Final = """\
version: 1
name: new-ruleset
default: block
rules:
  - id: first-rule
    match: {methods: [GET], path: ["/v1.0/users/{id}"]}
    verdict: filter
    transforms: {allow_properties: [id, displayName]}
    guard_queries: true
"""
_CASES_SAMPLE: Final = """\
cases:
  - name: the directory comes without private numbers
    request: GET /v1.0/users/ada
    expect: {verdict: filter, rule: first-rule}
"""


@dataclass(frozen=True, slots=True)
class Publishing:
    """A draft ruleset that may be published, and the active version of the ruleset."""

    name: str
    path: str  # path of its page after it is published
    may: bool  # True if the operator has permission to publish it
    version: int  # version that the draft would become
    base: int  # version that the draft began as, or 0
    in_force: int | None
    in_force_at: str | None
    in_force_note: str | None
    in_force_text: str | None
    second_person: bool  # True if another operator must approve it
    content: str  # digest of the text, its name and the organisation
    warnings: tuple[ProblemFacts, ...]
    apps: tuple[AppFacts, ...]
    # Difference from the active text, or None if the comparison takes too long
    difference: Difference | None = None

    @property
    def reviewed(self) -> str:
        """Value of the form field that identifies the ruleset text and the version that were reviewed."""
        return f"{self.in_force or 0}-{self.content}"

    @property
    def stale(self) -> bool:
        return self.in_force is not None and self.in_force != self.base


@dataclass(frozen=True, slots=True)
class _Draft:
    org: str  # id or name, empty until one is chosen for a new ruleset
    name: str | None  # name of the ruleset that is edited, or None for a new ruleset
    form: Mapping[str, str]

    @property
    def yaml(self) -> str:
        return _lines(self.form.get("yaml", ""))

    @property
    def base(self) -> int:
        given = self.form.get("base", "")
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else 0


@dataclass(frozen=True, slots=True)
class _Tried:
    """Result of an action on a draft, shown next to the draft."""

    what: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


@page("GET", "/rulesets/new", prefilled=True)
async def begin(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    # A link can select the application whose traffic the suggested rules allow.
    form = {**dict(request.query), "yaml": _NEW_TEXT, "into": request.org.name if request.org else ""}
    return await _editor(context, actor, request, _Draft("", None, form), _Tried())


@page("POST", "/rulesets/new")
async def go_on(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    draft = _Draft(request.form.get("into", ""), None, request.form)
    return await _try(context, actor, request, draft)


@page("GET", "/rulesets/{org}/{name}/edit", prefilled=True)
async def edit(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org, name = request.place["org"], request.place["name"]
    stored = await perform(rulesets.show, context, actor, ShowRuleset(ruleset=name, org=org))
    # A link can contain a request to explain.
    form = {**dict(request.query), "yaml": stored.yaml, "base": str(stored.version)}
    draft = _Draft(org, stored.name, form)
    return await _editor(context, actor, request, draft, await _explained(context, actor, draft))


@page("POST", "/rulesets/{org}/{name}/edit")
async def try_out(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    draft = _Draft(request.place["org"], request.place["name"], request.form)
    return await _try(context, actor, request, draft)


async def _explained(context: OperationContext, actor: Actor, draft: _Draft) -> _Tried:
    """If the link to the page contains a request, explain the verdict on that request."""
    if not draft.form.get("target", "").strip():
        return _Tried()
    try:
        return _Tried("explain", await _explain(context, actor, draft))
    except (*Refusal, StoreError) as error:
        return _Tried("explain", {}, reasons(error))


# Actions that try the draft


async def _try(
    context: OperationContext, actor: Actor, request: PageRequest, draft: _Draft
) -> Page | Redirect:
    what = request.form.get("do", "check")
    action = _ACTIONS.get(what, _check)
    try:
        values = await action(context, actor, draft)
        if isinstance(values, Redirect):
            return Redirect(request.link(values.to), values.flash)
        if isinstance(instead := values.get("instead"), dict):
            draft = replace(draft, org=instead["into"], form={**draft.form, **instead})
        tried = _Tried(what, values)
    except (*Refusal, StoreError, Forbidden) as error:
        tried = _Tried(what, {}, reasons(error))
    if request.form.get("live"):
        return await _live(actor, draft, await _org(context, actor, draft), tried)
    return await _editor(context, actor, request, draft, tried)


async def _check(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    return {
        "checked": await perform(
            dry_runs.check, context, actor, CheckRuleset(yaml=draft.yaml, org=draft.org or None)
        )
    }


async def _complete(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    """Return completions at the cursor.

    The script of the page counts the cursor's position in UTF-16 code units.
    """
    given = draft.form.get("caret", "")
    units = int(given) if given.isascii() and given.isdecimal() and len(given) < 8 else 0
    before = draft.yaml.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "replace")
    asked = CompleteRuleset(yaml=draft.yaml, at=len(before), org=draft.org or None)
    found = await perform(complete, context, actor, asked)
    return {"completed": found, "typed": before[found.start :]}


async def _explain(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    given = {name: draft.form.get(name, "").strip() for name in ("target", "method", "ip", "at")}
    if not given["target"]:
        raise InvalidRequest("path and query: enter at least a path, such as /v1.0/users")
    body, response = _lines(draft.form.get("body", "")), _lines(draft.form.get("answer", ""))
    headers = [line.strip() for line in _lines(draft.form.get("headers", "")).split("\n")]
    asked = ExplainRequest(
        source=Source(yaml=draft.yaml, label="rules"),
        org=draft.org or None,
        target=given["target"],
        method=given["method"] or "GET",
        headers=tuple(line for line in headers if line),
        ip=given["ip"],
        time=given["at"] or None,
        body=body or None,
        response=AnswerSample(body=response) if response else None,
    )
    return {"explained": await perform(dry_runs.explain, context, actor, asked)}


async def _allow(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    """Insert a new rule, which allows the request, at the beginning of the draft."""
    method, target = draft.form.get("method", "GET"), draft.form.get("target", "").strip()
    yaml = await run_trial(actor, with_allowing_rule, draft.yaml, method, target)
    allowed = replace(draft, form={**draft.form, "yaml": yaml})
    return {**await _explain(context, actor, allowed), "instead": {"yaml": yaml, "into": draft.org}}


async def _test(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    cases = _lines(draft.form.get("cases", ""))
    if not cases.strip():
        raise InvalidRequest("cases: enter at least one test case, in the form of the sample in the field")
    asked = RunCases(source=Source(yaml=draft.yaml, label="rules"), cases=cases, org=draft.org or None)
    return {"tested": await perform(dry_runs.test, context, actor, asked)}


async def _replay_har(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    source = Source(yaml=draft.yaml, label="rules")
    asked = ReplayHar(source=source, har=_file(draft), org=draft.org or None)
    return {"har": await perform(replay_har, context, actor, asked)}


async def _suggest_har(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    asked = SuggestFromHar(har=_file(draft), name=draft.name or "new-ruleset")
    found = await perform(suggest_har, context, actor, asked)
    return {"har_rules": found, "instead": {"yaml": found.yaml, "into": draft.org}}


def _file(draft: _Draft) -> str:
    text = draft.form.get("har", "")
    if not text.strip():
        raise InvalidRequest("HAR file: choose a file, such as one that a browser's network panel exports")
    if text.startswith(_GZIP):
        raise InvalidRequest(
            "HAR file: the file is compressed with gzip; decompress it, and choose the .har file"
        )
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"HAR file: the file may have at most {MOST_CHARACTERS:,} characters; export fewer requests"
        )
    return text


async def _routes(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    asked = ListRoutes(source=Source(yaml=draft.yaml, label="rules"), org=draft.org or None)
    return {"routes": await perform(list_routes, context, actor, asked)}


async def _diff(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    stored = await _in_force(context, actor, draft, draft.name)
    old = stored.yaml if stored else ""
    if (compared := await difference(actor, old, draft.yaml)) is None:
        raise StoreBusy("other comparisons are running: try again in a moment")
    return {"compared": compared}


async def _replay(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    if not draft.org:
        raise InvalidRequest("choose the organisation whose traffic to replay")
    evaluated = await bound_to(context, actor, draft.org, draft.name) if draft.name else ()
    step = await replaying.step(context, actor, draft.org, draft.yaml, evaluated, draft.form)
    return {"progress": step}


async def _suggest(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    """Replace the draft's text with a suggested ruleset."""
    chosen = draft.form.get("suggest_app", "")
    found = await choice_of_apps(context, actor, draft.org if draft.name else None, chosen)
    app = next((each for each in found.apps if each.app_id == chosen), None)
    if app is None:
        raise InvalidRequest("choose the app whose traffic to allow")
    asked = SuggestRuleset(
        org=app.org_id,
        app=app.app_id,
        name=draft.name,
        hours=replaying.hours(draft.form.get("suggest_hours", "24")),
        include_blocked=draft.form.get("suggest_blocked") == "yes",
        limit=_EVENTS_OF_A_SUGGESTION,
    )
    suggested = await perform(suggest_ruleset, context, actor, asked)
    org = await context.resolve.org(actor, "viewer", app.org_id)
    return {"suggested": suggested, "instead": {"yaml": suggested.yaml, "into": org.name}}


async def _review(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object]:
    found = await _compared(actor, await _publishing(context, actor, draft), draft)
    progress = await replaying.of_last_day(context, actor, draft.org, draft.yaml, found.apps)
    return {"publishing": found, "progress": progress, "effect": replaying.effect(progress)}


async def _publish(context: OperationContext, actor: Actor, draft: _Draft) -> dict[str, object] | Redirect:
    found = await _publishing(context, actor, draft)
    # If the operator may not publish, the operation refuses this and writes it to the operator log.
    if found.may and (why_not := _why_not(found, draft.form)) is not None:
        return {**await _review(context, actor, draft), "why_not": why_not}
    asked = ApplyRuleset(
        org=draft.org,
        yaml=draft.yaml,
        note=draft.form.get("note") or None,
        label="rules",
        expected=found.in_force or 0,
    )
    applied = await perform(rulesets.apply, context, actor, asked)
    if applied.proposal is not None:
        return Redirect(f"/proposals/{applied.proposal}", PROPOSED)
    said = (
        f"Version {applied.version} of {applied.name} is published. {ENFORCED_LATER}"
        if applied.changed
        else f"Nothing changed: version {applied.version} of {applied.name} already has this text."
    )
    return Redirect(place_of(draft.org, applied.name), said)


def _why_not(found: Publishing, form: Mapping[str, str]) -> str | None:
    in_force, _, content = form.get("reviewed", "").partition("-")
    if content != found.content:
        return "Not published: the text was changed after the review. Review it again."
    if in_force != str(found.in_force or 0):
        return f"Not published: version {found.in_force} became active after your review."
    if not form.get("note", "").strip():
        return "Not published: enter a reason, which is kept in the history."
    if found.stale and form.get("overwrite") != "yes":
        what = f"a draft of version {found.base}" if found.base else "the draft of a new ruleset"
        return f"Not published: version {found.in_force} is active, and this is {what}."
    return None


async def _publishing(context: OperationContext, actor: Actor, draft: _Draft) -> Publishing:
    """Return the draft in the form in which the control plane would publish it.

    Raise InvalidRequest if the draft can't be published.
    """
    if not draft.org:
        raise InvalidRequest("choose the organisation that the ruleset is for")
    org = await context.resolve.org(actor, "viewer", draft.org)
    may = actor.may("editor", org.org_id)
    # A check before publishing does not wait behind evaluations by operators who only try something.
    now = context.clock.wall_ms() / 1000
    checked = await (run_change if may else run_trial)(actor, dry_runs.checked, draft.yaml, now)
    if checked.problems:
        raise InvalidRequest(*(_describe(problem) for problem in checked.problems))
    if draft.name not in (None, checked.name):
        raise InvalidRequest(
            f"the name in the text is {checked.name}, but this is a draft of {draft.name}: "
            f"change the name to {draft.name}, or start a new ruleset"
        )
    name = checked.name or ""
    stored = await _in_force(context, actor, draft, name)
    return Publishing(
        name=name,
        path=place_of(draft.org, name),
        may=may,
        version=1 if stored is None else stored.version + 1,
        base=draft.base,
        in_force=None if stored is None else stored.version,
        in_force_at=None if stored is None else stored.created_at,
        in_force_note=None if stored is None else stored.note,
        in_force_text=None if stored is None else stored.yaml,
        second_person=org.approvals > 0,
        content=sha256(json.encode((org.org_id, name, draft.yaml))).hexdigest(),
        warnings=checked.warnings,
        apps=await bound_to(context, actor, draft.org, name),
    )


async def _compared(actor: Actor, found: Publishing, draft: _Draft) -> Publishing:
    if found.in_force_text is None:
        return found
    return replace(found, difference=await difference(actor, found.in_force_text, draft.yaml))


async def _in_force(
    context: OperationContext, actor: Actor, draft: _Draft, name: str | None
) -> RulesetText | None:
    if name is None:
        return None
    try:
        return await perform(rulesets.show, context, actor, ShowRuleset(ruleset=name, org=draft.org))
    except NotFound:
        return None


# The part of the page that shows the result of an action, or the reason why it failed.
_PANELS: Final = {
    "explain": "explain",
    "allow": "explain",
    "test": "test",
    "routes": "routes",
    "diff": "diff",
    "replay": "replay",
    "replay-on": "replay",
    "suggest": "suggest",
    "replay-har": "har",
    "suggest-har": "har",
}
_Action = Callable[[OperationContext, Actor, _Draft], Awaitable[dict[str, object] | Redirect]]
_ACTIONS: Final[Mapping[str, _Action]] = {
    "check": _check,
    "complete": _complete,
    "explain": _explain,
    "allow": _allow,
    "test": _test,
    "routes": _routes,
    "diff": _diff,
    "replay": _replay,
    "replay-on": _replay,
    "suggest": _suggest,
    "replay-har": _replay_har,
    "suggest-har": _suggest_har,
    "review": _review,
    "publish": _publish,
}
_NOTHING: Final[Mapping[str, Any]] = {
    "checked": None,
    "completed": None,
    "explained": None,
    "tested": None,
    "routes": None,
    "compared": None,
    "progress": None,
    "effect": None,
    "publishing": None,
    "why_not": None,
    "suggested": None,
    "har": None,
    "har_rules": None,
}


# Content of the page


async def _editor(
    context: OperationContext, actor: Actor, request: PageRequest, draft: _Draft, tried: _Tried
) -> Page:
    org = await _org(context, actor, draft)
    name = draft.name
    own = place_of(draft.org, name) if name else "/rulesets"
    chosen = draft.form.get("suggest_app")
    found = await choice_of_apps(context, actor, draft.org if name else None, chosen)
    names = {each.org_id: each.name for each in await context.resolve.orgs(actor)}
    editable = [each for each in await context.resolve.orgs(actor) if actor.may("editor", each.org_id)]
    values = {
        **await _shown(actor, draft, org, tried),
        "draft_key": f"{draft.org}/{name}" if name else "new",
        "base_version": draft.base,
        "may_publish": actor.may("editor", org.org_id) if org else bool(editable),
        "org_choice": [(each.name, each.name) for each in editable] if name is None else [],
        "methods": METHODS,
        "hours": HOURS,
        "apps": [
            *([(replaying.EVALUATED_APPS, "its own apps")] if name else []),
            (replaying.EVERY_APP, "every app"),
            *((each.app_id, each.name) for each in found.apps if org is None or each.org_id == org.org_id),
        ],
        "suggest_apps": [
            (each.app_id, each.name if name else f"{each.name}, {names[each.org_id]}") for each in found.apps
        ],
        "cases_sample": _CASES_SAMPLE,
        "rule": draft.form.get("rule", ""),
        "opened": _PANELS.get(tried.what, _first_panel(draft) if tried.what in ("", "check") else ""),
        "back": own,
    }
    crumbs = (CRUMB, (name, own)) if name else (CRUMB,)
    is_refused = tried.refused or values["why_not"]
    status = 422 if is_refused and request.form else 200
    return Page("draft.html", f"Edit {name}" if name else "New ruleset", values, crumbs, status)


def _first_panel(draft: _Draft) -> str:
    return "suggest" if draft.name is None else "explain"


async def _live(actor: Actor, draft: _Draft, org: Org | None, tried: _Tried) -> Page:
    return Page(
        "draft_live.html",
        "",
        {**await _shown(actor, draft, org, tried), "tried": _PANELS.get(tried.what, tried.what)},
    )


async def _org(context: OperationContext, actor: Actor, draft: _Draft) -> Org | None:
    return await context.resolve.org(actor, "viewer", draft.org) if draft.org else None


async def _shown(actor: Actor, draft: _Draft, org: Org | None, tried: _Tried) -> dict[str, object]:
    # Without the places, names of rules have no links. The rest of the page still works.
    places = await run_for_page(actor, ruleset_text.rule_places, draft.yaml) or ()
    panel = _PANELS.get(tried.what)
    return {
        **_NOTHING,
        **tried.values,
        "form": {**draft.form, "yaml": draft.yaml, "base": str(draft.base or "")},
        "org_id": org.org_id if org else "",
        "org_name": org.name if org else None,
        "refused": () if panel else tried.refused,
        "refused_in": {panel or tried.what: tried.refused},
        "rule_lines": {each.id: each.line for each in places},
    }


def _describe(problem: ProblemFacts) -> str:
    where = f"{problem.where}: " if problem.where else ""
    return f"line {problem.line}, column {problem.column}: {where}{problem.message}"


def _lines(text: str) -> str:
    """Return the text of a form field with the line ends that the operator typed.

    HTML forms send line breaks as CRLF in every encoding.
    """
    return text.replace("\r\n", "\n")
