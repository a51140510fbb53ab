"""Facts about routes of Microsoft Graph that are in neither the schema of Graph nor the facts for rules."""

from __future__ import annotations

from typing import Final

# Types that a subscription pushes.
# https://learn.microsoft.com/graph/api/resources/change-notifications-api-overview
SUBSCRIBED: Final = frozenset(
    (
        "alert",
        "baseTask",
        "callRecord",
        "callRecording",
        "callTranscript",
        "channel",
        "chat",
        "chatMessage",
        "contact",
        "conversation",
        "conversationMember",
        "driveItem",
        "event",
        "group",
        "list",
        "message",
        "onlineMeeting",
        "presence",
        "printer",
        "printTaskDefinition",
        "team",
        "teamsAppInstallation",
        "todoTask",
        "user",
    )
)

# The other versions of the service, for each version.
OTHER_VERSIONS: Final = {"v1.0": "beta", "beta": "v1.0"}
