"""Command `ruleset usage`, which counts the hits of each rule and marks rules without hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    clock,
    facts_of,
    print_json,
    print_list,
    print_text,
)
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.ruleset import parsed, stored_ruleset
from controlplane.usage import KEPT_DAYS
from proxy.policy.ruleset import DEFAULT_RULE_ID
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.operations.rulesets import RulesetUsage

app = typer.Typer()

RULES: Final = Layout(
    "rules",
    (
        Column("rule"),
        Column("hits", "number"),
        Column("lastHit", "time"),
        Column("place", "prose", "In the active version"),
    ),
    leads=("rule",),
    drops=("place",),
)


@app.command("usage")
def show_usage(
    ctx: typer.Context,
    ruleset: Annotated[str, typer.Argument(metavar="RULESET", help="ID or name.")],
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Count the requests that each rule decided or logged in the last 30 days, and mark unused rules."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    shown = stored_ruleset(cli, ruleset, org, None)
    found = cli.call(rulesets.usage, rulesets.RulesetReference(shown.ruleset_id, shown.org_id))
    ids = [rule.id for rule in parsed(shown.name, shown.yaml).rules]
    rows = list(rows_of(found, ids))
    if json:
        listed = [{each: row[each] for each in ("rule", "hits", "lastHit")} for row in rows]
        print_json(facts_of(found) | {"rules": listed})
        return
    print_list(RULES, [_in_words(row) for row in rows], as_json=False, fit=fit_of(wide, no_trunc))
    unused = sum(row["place"] is None and row["lastHit"] is None for row in rows)
    since = clock().whole(found.counted_since)
    said = f"hits of the last {found.days} days, last hits of the last {KEPT_DAYS}"
    print_text(f"{shown.name} version {shown.version}: {said}.")
    print_text(
        f"Requests before {since} were not counted. {counted(unused, 'rule')} of the version had no hit."
    )


def rows_of(found: RulesetUsage, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a table row per rule: rules of the active version in order, the default, then other rules.

    The cell `place` of a row is None if the rule is in the active version.
    """
    used = {each.rule: each for each in found.rules}
    others = sorted(used.keys() - {*ids, DEFAULT_RULE_ID})
    places: list[tuple[str, str | None]] = [(each, None) for each in ids]
    places += [(DEFAULT_RULE_ID, "default"), *((each, "other version") for each in others)]
    for rule, place in places:
        use = used.get(rule)
        yield {
            "rule": rule,
            "hits": 0 if use is None else use.hits,
            "lastHit": None if use is None else use.last_hit,
            "place": place,
        }


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    places = {None: "yes", "default": "no rule decided", "other version": "no"}
    return row | {"lastHit": row["lastHit"] or "never hit", "place": places[row["place"]]}
