"""The range of events that an index or an archive received from the outbox and has not finished writing."""

from __future__ import annotations

from controlplane.store.database import Connection
from controlplane.store.interface import GivenOut


def give_out(connection: Connection, index: str, wanted: GivenOut) -> GivenOut | None:
    """Save the range of events that an index must write next, and return this range.

    If the index has not finished writing an earlier range of events, return that earlier range. Return None
    if another process has already written the wanted range, so that the index has moved past the beginning of
    the range.
    """
    connection.run(
        "INSERT INTO outbox_cursor (index_name, position) VALUES (?, 0) ON CONFLICT (index_name) DO NOTHING",
        (index,),
    )
    if not _holds_cursor(connection, index, wanted.after):
        return None
    connection.run(
        "INSERT INTO outbox_ranges (index_name, after_position, upto_position, token) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (index_name) DO NOTHING",
        (index, wanted.after, wanted.upto, wanted.token),
    )
    after, upto, token = connection.row(
        "SELECT after_position, upto_position, token FROM outbox_ranges WHERE index_name = ?", (index,)
    )
    return GivenOut(after, upto, token)


def finish(connection: Connection, index: str, given: GivenOut) -> None:
    """Record that the index has written the range.

    Do nothing if another process has already recorded this.
    """
    if _holds_cursor(connection, index, given.after):
        connection.run("UPDATE outbox_cursor SET position = ? WHERE index_name = ?", (given.upto, index))
        connection.run("DELETE FROM outbox_ranges WHERE index_name = ?", (index,))


def go_back(connection: Connection, index: str, position: int) -> None:
    """Move the cursor of an index back to `position`, because the index lacks the events after it.

    The outbox gives the index all events after `position` again. Each range of these events gets a new token,
    because a token always stands for one range.
    """
    connection.run("UPDATE outbox_cursor SET position = ? WHERE index_name = ?", (position, index))
    connection.run("DELETE FROM outbox_ranges WHERE index_name = ?", (index,))


def fix_range(connection: Connection, archive: str, after: int, upto: int) -> int:
    """Save and return the end of the range of events that the archive writes after position `after`.

    If the store already has an end for the archive's range of events after `after`, return this stored end.
    """
    connection.run(
        "INSERT INTO outbox_ranges (index_name, after_position, upto_position, token) VALUES (?, ?, ?, '')"
        " ON CONFLICT (index_name) DO UPDATE SET after_position = excluded.after_position,"
        " upto_position = excluded.upto_position"
        " WHERE outbox_ranges.after_position <> excluded.after_position",
        (archive, after, upto),
    )
    (fixed,) = connection.row("SELECT upto_position FROM outbox_ranges WHERE index_name = ?", (archive,))
    return int(fixed)


def _holds_cursor(connection: Connection, index: str, position: int) -> bool:
    """Lock the cursor of the index, and return whether the cursor is at the given position."""
    held = "UPDATE outbox_cursor SET position = position WHERE index_name = ? AND position = ?"
    return connection.count(held, (index, position)) > 0
