"""Rule changes that wait for a second person, and the check that no change bypasses approval."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple
from typing import Final

from controlplane.store.database import REGISTRY, Connection, Database, is_text
from controlplane.store.interface import (
    MOST_OPEN,
    Approval,
    Conflict,
    NotFound,
    Org,
    Proposal,
    Ruleset,
    SecondPersonNeeded,
)
from controlplane.store.rows import require_row

_REPLACED: Final = "Its proposer replaced it with a newer proposal."
_COLUMNS: Final = (
    "proposal_id, org_id, kind, ruleset_id, ruleset, base_version, yaml, to_version, app_id, base_ruleset_id,"
    " note, proposed_by, proposed_ms, state, decided_by, decided_ms, reason, version"
)
_FOUND: Final = f"SELECT {_COLUMNS} FROM proposals"  # noqa: S608 - our own names
_LISTED: Final = _FOUND.replace(" yaml,", " NULL,")  # without texts, which may be large


class ProposalTables:
    _database: Database

    async def set_approvals(self, org_id: str, approvals: int) -> Org:
        def job(connection: Connection) -> Org:
            require_row(connection, "org", org_id)
            connection.run("UPDATE orgs SET approvals = ? WHERE org_id = ?", (approvals, org_id))
            return Org(
                *connection.row(
                    "SELECT org_id, name, retention, created_ms, approvals FROM orgs WHERE org_id = ?",
                    (org_id,),
                )
            )

        return await self._database.write_even_if_full(job, REGISTRY)

    async def add_proposal(self, proposal: Proposal, most: int = MOST_OPEN) -> None:
        """Store a proposed change of rules for approval.

        A new proposal replaces the operator's open proposal of the same kind for the same application or
        ruleset. `most` is the maximum number of open proposals that an operator may have in the organisation.
        """

        def job(connection: Connection) -> None:
            require_row(connection, "org", proposal.org_id)
            by, at_ms = proposal.proposed_by, proposal.proposed_ms
            connection.run(
                "UPDATE proposals SET state = 'rejected', decided_by = ?, decided_ms = ?, reason = ?"
                " WHERE org_id = ? AND state = 'open' AND proposed_by = ? AND kind = ?"
                " AND coalesce(app_id, ruleset_id) = ?",
                (
                    *(by, at_ms, _REPLACED, proposal.org_id, by, proposal.kind),
                    proposal.app_id or proposal.ruleset_id,
                ),
            )
            (count,) = connection.row(
                "SELECT count(*) FROM proposals WHERE org_id = ? AND state = 'open' AND proposed_by = ?",
                (proposal.org_id, by),
            )
            if count >= most:
                raise Conflict(
                    f"an operator may have {most} open proposals in an organisation: approve or reject some"
                    " proposals first, or propose fewer changes at once"
                )
            marks = ", ".join("?" * len(astuple(proposal)))
            connection.run(f"INSERT INTO proposals ({_COLUMNS}) VALUES ({marks})", astuple(proposal))  # noqa: S608

        await self._database.write_even_if_full(job, REGISTRY)

    async def proposal(self, proposal_id: str) -> Proposal | None:
        if not is_text(proposal_id):
            return None
        rows = await self._database.fetch(f"{_FOUND} WHERE proposal_id = ?", (proposal_id,))
        return Proposal(*rows[0]) if rows else None

    async def proposals(self, org_ids: Collection[str], *, is_open: bool, limit: int) -> list[Proposal]:
        """Return proposals without the texts of their rulesets, the newest first."""
        found: list[Proposal] = []
        state = " AND state = 'open'" if is_open else ""
        for org_id in org_ids:
            rows = await self._database.fetch(
                f"{_LISTED} WHERE org_id = ?{state} ORDER BY proposed_ms DESC, proposal_id DESC LIMIT ?",
                (org_id, limit),
            )
            found += [Proposal(*row) for row in rows]
        return sorted(found, key=lambda each: (each.proposed_ms, each.proposal_id), reverse=True)[:limit]

    async def open_proposals(self) -> list[tuple[str, str]]:
        """Return the organisation and the proposer of every open proposal."""
        rows = await self._database.fetch("SELECT org_id, proposed_by FROM proposals WHERE state = 'open'")
        return [(org_id, proposed_by) for org_id, proposed_by in rows]

    async def reject_proposal(self, decision: Approval) -> None:
        """Reject an open proposal.

        Raise Conflict if the proposal was approved or rejected already.
        """

        def job(connection: Connection) -> None:
            _decide(connection, decision, "rejected", None)

        await self._database.write_even_if_full(job, REGISTRY)


def pass_gate(
    connection: Connection, org_id: str, approval: Approval | None, change: Ruleset | None = None
) -> None:
    """Mark the proposal that belongs to `approval` as approved.

    `change` is the ruleset version that will be made, or None if the change makes no version. Raise Conflict
    if the proposal was approved or rejected already. Raise SecondPersonNeeded if the organisation requires an
    approval and the argument `approval` is None.
    """
    if approval is not None:
        _decide(connection, approval, "approved", None if change is None else change.version)
        return
    row = connection.row("SELECT approvals FROM orgs WHERE org_id = ?", (org_id,))
    if row is None:
        raise NotFound("this organisation was removed")
    if row[0]:
        raise SecondPersonNeeded(change)


def _decide(connection: Connection, decision: Approval, state: str, version: int | None) -> None:
    changed = connection.count(
        "UPDATE proposals SET state = ?, decided_by = ?, decided_ms = ?, reason = ?, version = ?"
        " WHERE proposal_id = ? AND state = 'open'",
        (state, decision.by, decision.at_ms, decision.reason, version, decision.proposal_id),
    )
    if not changed:
        raise Conflict("the proposal is decided already")
