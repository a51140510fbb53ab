"""Facts about Microsoft Graph that its schema does not have: requests that bring or hand over a thing."""

from __future__ import annotations

from typing import Final

# Types that a subscription pushes. https://learn.microsoft.com/graph/api/resources/change-notifications-api-overview
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

# Words of `entityTypes` in a search, and the types that each finds.
# https://learn.microsoft.com/graph/api/resources/searchrequest
SEARCHED: Final = {
    "acronym": ("acronym",),
    "bookmark": ("bookmark",),
    "chatMessage": ("chatMessage",),
    "drive": ("drive",),
    "driveItem": ("driveItem", "driveItem.content"),
    "event": ("event",),
    "externalItem": ("externalItem",),
    "list": ("list",),
    "listItem": ("listItem",),
    "message": ("message",),
    "person": ("person",),
    "qna": ("qna",),
    "site": ("site",),
}

# Operations that hand a thing over although the schema gives them another result, or none. The name of each
# operation follows the type that it binds to.
HANDED_OVER: Final = {
    "calendar.getSchedule": ("event",),
    "deviceManagementReports.exportJob": ("managedDevice",),
    "directoryObject.checkMemberGroups": ("group.members",),
    "directoryObject.checkMemberObjects": ("group.members", "directoryRole.members"),
    "directoryObject.getMemberGroups": ("group.members",),
    "directoryObject.getMemberObjects": ("group.members", "directoryRole.members"),
    "driveItem.copy": ("driveItem.content",),
    "driveItem.createLink": ("driveItem.content",),
    "driveItem.invite": ("driveItem.content",),
    "driveItem.preview": ("driveItem.content",),
    "event.forward": ("event",),
    "mailbox.exportItems": ("contact", "event", "message"),
    "message.forward": ("message",),
    "message.reply": ("message",),
    "message.replyAll": ("message",),
    "security.runHuntingQuery": ("message", "signIn", "user"),
    "user.exportPersonalData": ("driveItem.content", "event", "message", "user"),
    "user.getMailTips": ("user.mailboxSettings",),
    "user.reminderView": ("event",),
}

# Properties whose value opens a stream without a token, by the stream.
# https://learn.microsoft.com/graph/api/driveitem-get-content
LINKS: Final = {"driveItem.content": "@microsoft.graph.downloadUrl"}

# Other versions of the service, by each version.
OTHER_VERSIONS: Final = {"v1.0": "beta", "beta": "v1.0"}
GRAPH_NAMESPACE: Final = "microsoft.graph"
