"""Facts about Microsoft Graph that its schema does not contain, each fact with its documentation page.

The documentation page of a fact is below https://learn.microsoft.com/graph/api/ unless the fact gives another
address. If a fact names an element, such as a type or an operation, that the upstream's schema lacks, the
proxy ignores this name. Examples of a schema without some names are an older schema and the schema of a
national cloud.
"""

from __future__ import annotations

from typing import Final

from proxy.policy.services.facts import Address, Facts, HandedOver, Pack

_PACKS: Final = {
    "mail": Pack(
        (
            "message",  # resources/message
            "mailFolder",  # resources/mailfolder
            "mailTips",  # user-getmailtips
            "inferenceClassification",  # resources/inferenceclassification
            "mailboxItem",  # resources/mailboxitem: items of a mailbox for import and export
            "mailboxFolder",  # resources/mailboxfolder
            "conversation",  # resources/conversation: the mail of groups
            "conversationThread",  # resources/conversationthread
            "post",  # resources/post
            "analyzedEmail",  # resources/security-analyzedemail
            "mailAssessmentRequest",  # resources/mailassessmentrequest
        ),
        ("sendMail",),  # user-sendmail
    ),
    "calendar": Pack(
        (
            "event",  # resources/event
            "calendar",  # resources/calendar
            "calendarGroup",  # resources/calendargroup
            "reminder",  # user-reminderview
            "scheduleInformation",  # calendar-getschedule
            "meetingTimeSuggestionsResult",  # user-findmeetingtimes
        ),
    ),
    "contacts": Pack(
        (
            "contact",  # resources/contact
            "contactFolder",  # resources/contactfolder
            "person",  # resources/person: ranked from contacts and mail
        ),
    ),
    "files": Pack(
        (
            "driveItem.content",  # driveitem-get-content
            "driveItemVersion.content",  # driveitemversion-get-contents
            "workbook",  # resources/workbook: content of an Excel file
            "thumbnailSet",  # driveitem-list-thumbnails: pictures of the content
            "itemPreviewInfo",  # driveitem-preview
        ),
    ),
    "chats": Pack(
        (
            "chatMessage",  # resources/chatmessage
            "chatMessageHostedContent",  # resources/chatmessagehostedcontent
            "pinnedChatMessageInfo",  # resources/pinnedchatmessageinfo
            "targetedChatMessage",  # resources/targetedchatmessage
            "engagementConversationMessage",  # resources/engagementconversationmessage
            "aiInteraction",  # resources/aiinteraction: chats with Copilot
        ),
    ),
    "membership": Pack(
        (
            "group.members",  # group-list-members
            "group.transitiveMembers",  # group-list-transitivemembers
            "group.memberOf",  # group-list-memberof
            "group.transitiveMemberOf",  # group-list-transitivememberof
            "group.membersWithLicenseErrors",  # resources/group
            "group.membershipRule",  # resources/group: a rule makes members
            "user.memberOf",  # user-list-memberof
            "user.transitiveMemberOf",  # user-list-transitivememberof
            "user.joinedTeams",  # user-list-joinedteams
            "device.memberOf",  # device-list-memberof
            "device.transitiveMemberOf",  # device-list-transitivememberof
            "servicePrincipal.memberOf",  # serviceprincipal-list-memberof
            "servicePrincipal.transitiveMemberOf",  # serviceprincipal-list-transitivememberof
            "orgContact.memberOf",  # orgcontact-list-memberof
            "orgContact.transitiveMemberOf",  # orgcontact-list-transitivememberof
            "administrativeUnit.members",  # administrativeunit-list-members
            "administrativeUnit.membershipRule",  # resources/administrativeunit
            "conversationMember",  # resources/conversationmember: of teams, channels and chats
            "userTeamwork.associatedTeams",  # associatedteaminfo-list
            "educationClass.members",  # educationclass-list-members
            "educationUser.classes",  # educationuser-list-classes
            "teamworkTag.members",  # teamworktag-list-members
            "sharePointGroup.members",  # resources/sharepointgroup
            "privilegedAccessGroupAssignmentSchedule",  # resources/privilegedaccessgroupassignmentschedule
            "privilegedAccessGroupAssignmentScheduleInstance",
            "privilegedAccessGroupAssignmentScheduleRequest",
            "privilegedAccessGroupEligibilitySchedule",  # resources/privilegedaccessgroupeligibilityschedule
            "privilegedAccessGroupEligibilityScheduleInstance",
            "privilegedAccessGroupEligibilityScheduleRequest",
            "accessPackageAssignment",  # resources/accesspackageassignment
            "accessPackageAssignmentRequest",  # resources/accesspackageassignmentrequest
        ),
        (
            "getMemberGroups",  # directoryobject-getmembergroups
            "getMemberObjects",  # directoryobject-getmemberobjects
            "checkMemberGroups",  # directoryobject-checkmembergroups
            "checkMemberObjects",  # directoryobject-checkmemberobjects
        ),
    ),
    "owners": Pack(
        (
            "group.owners",  # group-list-owners
            "application.owners",  # application-list-owners
            "servicePrincipal.owners",  # serviceprincipal-list-owners
            "device.registeredOwners",  # device-list-registeredowners
            "community.owners",  # community-list-owners
            "user.ownedObjects",  # user-list-ownedobjects
            "user.ownedDevices",  # user-list-owneddevices
            "servicePrincipal.ownedObjects",  # serviceprincipal-list-ownedobjects
        ),
    ),
    "credentials": Pack(
        (
            "application.keyCredentials",  # resources/keycredential
            "application.passwordCredentials",  # resources/passwordcredential
            "application.federatedIdentityCredentials",  # application-list-federatedidentitycredentials
            "servicePrincipal.keyCredentials",
            "servicePrincipal.passwordCredentials",
            "servicePrincipal.federatedIdentityCredentials",
            "federatedIdentityCredential",  # resources/federatedidentitycredential
        ),
        (
            "addPassword",  # application-addpassword, serviceprincipal-addpassword
            "addKey",  # application-addkey, serviceprincipal-addkey
            "removePassword",  # application-removepassword
            "removeKey",  # application-removekey
            "addTokenSigningCertificate",  # serviceprincipal-addtokensigningcertificate
        ),
    ),
    "permissions": Pack(
        (
            "appRoleAssignment",  # resources/approleassignment
            "oAuth2PermissionGrant",  # resources/oauth2permissiongrant
            "resourceSpecificPermissionGrant",  # resources/resourcespecificpermissiongrant
            "delegatedPermissionClassification",  # resources/delegatedpermissionclassification
            "permissionGrantPolicy",  # resources/permissiongrantpolicy
            "appConsentRequest",  # resources/appconsentrequest
            "userConsentRequest",  # resources/userconsentrequest
        ),
    ),
    "sign-ins": Pack(
        (
            "signIn",  # resources/signin
            "user.signInActivity",  # resources/signinactivity
            "riskDetection",  # resources/riskdetection: each contains its sign-in
            "riskyUser",  # resources/riskyuser
            "riskyServicePrincipal",  # resources/riskyserviceprincipal
            "servicePrincipalRiskDetection",  # resources/serviceprincipalriskdetection
            "auditLogQuery",  # resources/security-auditlogquery
            "auditLogRecord",  # resources/security-auditlogrecord
        ),
    ),
    "roles": Pack(
        (
            "directoryRole",  # resources/directoryrole
            "directoryRole.members",  # directoryrole-list-members
            "directoryRole.scopedMembers",  # directoryrole-list-scopedmembers
            "directoryRoleTemplate",  # resources/directoryroletemplate
            "scopedRoleMembership",  # resources/scopedrolemembership
            "unifiedRoleDefinition",  # resources/unifiedroledefinition
            "unifiedRoleAssignment",  # resources/unifiedroleassignment
            "unifiedRoleScheduleBase",  # resources/unifiedroleschedulebase
            "unifiedRoleScheduleInstanceBase",  # resources/unifiedrolescheduleinstancebase
            "unifiedRoleAssignmentScheduleRequest",  # resources/unifiedroleassignmentschedulerequest
            "unifiedRoleEligibilityScheduleRequest",  # resources/unifiedroleeligibilityschedulerequest
            "unifiedRoleManagementPolicy",  # resources/unifiedrolemanagementpolicy
            "unifiedRoleManagementPolicyAssignment",  # resources/unifiedrolemanagementpolicyassignment
        ),
    ),
    "access-policies": Pack(
        (
            "conditionalAccessPolicy",  # resources/conditionalaccesspolicy
            "conditionalAccessTemplate",  # resources/conditionalaccesstemplate
            "namedLocation",  # resources/namedlocation
            "authenticationStrengthPolicy",  # resources/authenticationstrengthpolicy
            "authenticationContextClassReference",  # resources/authenticationcontextclassreference
            "identitySecurityDefaultsEnforcementPolicy",
        ),
    ),
    "recovery-keys": Pack(
        (
            "bitlockerRecoveryKey",  # resources/bitlockerrecoverykey
            "deviceLocalCredentialInfo",  # resources/devicelocalcredentialinfo: Windows LAPS
        ),
    ),
    "authentication-methods": Pack(
        (
            "authentication",  # resources/authentication
            "authenticationMethod",  # resources/authenticationmethod
            "userRegistrationDetails",  # resources/userregistrationdetails
            "user.passwordProfile",  # resources/passwordprofile
        ),
        (
            "changePassword",  # user-changepassword
            "resetPassword",  # authenticationmethod-resetpassword
        ),
    ),
    "notes": Pack(
        (
            "onenote",  # resources/onenote
            "onenoteEntityBaseModel",  # resources/onenote: notebooks, sections, pages and resources
            "onenoteOperation",  # resources/onenoteoperation
            "recentNotebook",  # notebook-getrecentnotebooks
        ),
    ),
    "mailbox-settings": Pack(
        (
            "user.mailboxSettings",  # user-get-mailboxsettings
            "messageRule",  # resources/messagerule
            "outlookCategory",  # resources/outlookcategory
            "mailTips.automaticReplies",  # resources/automaticrepliesmailtips
        ),
    ),
    "list-items": Pack(
        (
            "listItem",  # resources/listitem
            "listItemVersion",  # resources/listitemversion
            "fieldValueSet",  # resources/fieldvalueset
        ),
    ),
}

_MAILBOX: Final = ("message", "event", "contact")

_HANDED_OVER: Final = (
    # Operations that return links or copies of a file, or sessions that write one.
    HandedOver("createLink", "driveItem", ("driveItem.content",)),  # driveitem-createlink
    HandedOver("invite", "driveItem", ("driveItem.content",)),  # driveitem-invite
    HandedOver("preview", "driveItem", ("driveItem.content",)),  # driveitem-preview
    HandedOver("copy", "driveItem", ("driveItem.content",)),  # driveitem-copy
    HandedOver("createUploadSession", "driveItem", ("driveItem.content",)),  # driveitem-createuploadsession
    HandedOver("createLink", "listItem", ("driveItem.content",)),  # listitem-createlink
    HandedOver("retrieval", "copilotRoot", ("driveItem.content", "listItem")),  # copilotroot-retrieval
    # Operations that export data.
    HandedOver(  # user-exportpersonaldata
        "exportPersonalData", "user", (*_MAILBOX, "chatMessage", "driveItem.content", "user.mailboxSettings")
    ),
    HandedOver("exportItems", "mailbox", _MAILBOX),  # mailbox-exportitems
    HandedOver("createImportSession", "mailbox", _MAILBOX),  # mailbox-createimportsession
    HandedOver(  # security-ediscoveryreviewset-export
        "export", "ediscoveryReviewSet", (*_MAILBOX, "chatMessage", "driveItem.content")
    ),
    HandedOver(  # security-ediscoveryreviewsetquery-export
        "export", "ediscoveryReviewSetQuery", (*_MAILBOX, "chatMessage", "driveItem.content")
    ),
    HandedOver(  # security-ediscoverysearch-exportresult
        "exportResult", "ediscoverySearch", (*_MAILBOX, "chatMessage", "driveItem.content")
    ),
    # https://learn.microsoft.com/defender-xdr/advanced-hunting-schema-tables: EmailEvents, SigninLogs, …
    HandedOver("runHuntingQuery", "security", ("message", "signIn", "chatMessage")),
    # Operations on membership and credentials.
    HandedOver(  # directoryobject-getmembergroups
        "getMemberGroups", "directoryObject", ("group.members", "user.memberOf", "group.transitiveMembers")
    ),
    HandedOver(  # directoryobject-getmemberobjects
        "getMemberObjects",
        "directoryObject",
        ("group.members", "user.memberOf", "group.transitiveMembers", "directoryRole.members"),
    ),
    HandedOver(  # directoryobject-checkmembergroups
        "checkMemberGroups", "directoryObject", ("group.members", "user.memberOf", "group.transitiveMembers")
    ),
    HandedOver(  # directoryobject-checkmemberobjects
        "checkMemberObjects",
        "directoryObject",
        ("group.members", "user.memberOf", "group.transitiveMembers", "directoryRole.members"),
    ),
    HandedOver("addPassword", "application", ("application.passwordCredentials",)),
    HandedOver("addPassword", "servicePrincipal", ("servicePrincipal.passwordCredentials",)),
    HandedOver("addKey", "application", ("application.keyCredentials",)),
    HandedOver("addKey", "servicePrincipal", ("servicePrincipal.keyCredentials",)),
    HandedOver(  # serviceprincipal-addtokensigningcertificate
        "addTokenSigningCertificate", "servicePrincipal", ("servicePrincipal.keyCredentials",)
    ),
)

_ADDRESSES: Final = (
    Address("driveItem.content", "driveItem", "@microsoft.graph.downloadUrl"),  # driveitem-get-content
    Address("driveItem.content", "driveItem", "@content.downloadUrl"),  # driveitem-list-children
    Address(  # resources/thumbnail
        "driveItem.content", "thumbnail", "url", within="thumbnails", relation="thumbnails"
    ),
    # resources/sharinglink: a link of the scope `anonymous` needs no sign-in.
    Address("driveItem.content", "sharingLink", "webUrl", within="link"),
    Address("driveItem.content", "sharingLink", "webHtml", within="link"),
    Address("driveItem.content", "itemPreviewInfo", "getUrl"),  # resources/itempreviewinfo
    Address("driveItem.content", "itemPreviewInfo", "postUrl"),
    # driveitem-list-versions: one of them is the current content.
    Address("driveItem.content", "driveItemVersion", "@microsoft.graph.downloadUrl"),
    Address("driveItemVersion.content", "driveItemVersion", "@microsoft.graph.downloadUrl"),
)

# resources/search-api-overview: types that each of `entityTypes` finds.
_SEARCH_TYPES: Final = {
    "message": ("message",),
    "event": ("event",),
    "drive": ("drive",),
    "driveitem": ("driveItem", "driveItem.content", "listItem"),
    "list": ("list",),
    "listitem": ("listItem", "driveItem", "driveItem.content"),
    "site": ("site",),
    "chatmessage": ("chatMessage",),
    "person": ("person",),
    "externalitem": ("externalItem",),
    "acronym": ("acronym",),
    "bookmark": ("bookmark",),
    "qna": ("qna",),
}

_ON_REQUEST: Final = (
    "user.mailboxSettings",  # resources/user: "Returned only on $select"
    "user.signInActivity",  # resources/user
    "user.passwordProfile",  # resources/user
)

_TARGETS: Final = {
    "user.manager": ("user", "orgContact"),  # user-list-manager
    "user.directReports": ("user", "orgContact"),  # user-list-directreports
    "orgContact.manager": ("user", "orgContact"),  # orgcontact-get-manager
    "orgContact.directReports": ("user", "orgContact"),  # orgcontact-list-directreports
    "user.ownedDevices": ("device",),  # user-list-owneddevices
    "user.registeredDevices": ("device",),  # user-list-registereddevices
    "user.sponsors": ("user", "group"),  # user-list-sponsors
    "device.registeredOwners": ("user", "servicePrincipal"),  # device-list-registeredowners
    "device.registeredUsers": ("user", "servicePrincipal"),  # device-list-registeredusers
    "group.members": ("user", "group", "device", "servicePrincipal", "orgContact"),  # group-list-members
    "group.owners": ("user", "servicePrincipal"),  # group-list-owners
    "application.owners": ("user", "servicePrincipal"),  # application-list-owners
    "servicePrincipal.owners": ("user", "servicePrincipal"),  # serviceprincipal-list-owners
}

GRAPH_FACTS: Final = Facts(
    "microsoft.graph", _PACKS, _HANDED_OVER, _ADDRESSES, _SEARCH_TYPES, _ON_REQUEST, _TARGETS
)
