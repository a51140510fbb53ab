"""Names in the published examples of Microsoft Graph, used to detect misspelled names in rules."""

from __future__ import annotations

from typing import Final

_PROPERTIES: Final = """
    aboutMe accountEnabled ageGroup appDisplayName appId appRoles assignedLicenses assignedPlans assignedTo
    attachments attendees bccRecipients birthday bodyPreview businessPhones calendar categories
    ccRecipients changeType childFolderCount city classification clientState companyName
    completedDateTime consentProvidedForMinor contentBytes contentType conversationId conversationIndex
    country createdBy createdDateTime creationType department description deviceId directReports
    displayName drive emailAddress emailAddresses employeeHireDate employeeId employeeLeaveDateTime
    employeeOrgData employeeType expirationDateTime externalUserState faxNumber file fileSystemInfo flag
    folder from givenName groupTypes hasAttachments hireDate homePhones identities imAddresses
    importance inferenceClassification initials interests internetMessageHeaders internetMessageId
    isAllDay isCancelled isDraft isOnlineMeeting isRead isReminderOn isResourceAccount jobTitle
    keyCredentials lastModifiedBy lastModifiedDateTime lastPasswordChangeDateTime lastSignInDateTime
    legalAgeGroupClassification licenseAssignmentStates location locations mail mailboxSettings
    mailEnabled mailNickname manager memberOf members membershipRule mobilePhone mySite nickName notes
    notificationUrl officeLocation onlineMeeting onlineMeetingUrl onPremisesDistinguishedName
    onPremisesDomainName onPremisesExtensionAttributes onPremisesImmutableId onPremisesLastSyncDateTime
    onPremisesSamAccountName onPremisesSecurityIdentifier onPremisesSyncEnabled
    onPremisesUserPrincipalName organizer otherMails owners parentFolderId parentReference
    passwordCredentials passwordPolicies passwordProfile pastProjects personalNotes phones photo
    postalCode preferredDataLocation preferredLanguage preferredName profilePhoto proxyAddresses
    receivedDateTime recipients recurrence refreshTokensValidFromDateTime replyTo requiredResourceAccess
    resource resourceProvisioningOptions responseStatus responsibilities roles schools
    scopedRoleMemberOf securityEnabled securityIdentifier sender sensitivity sentDateTime seriesMasterId
    servicePrincipalType serviceProvisioningErrors showInAddressList signInActivity signInAudience
    signInSessionsValidFromDateTime skills start state streetAddress subject surname telephoneNumber
    title toRecipients transitiveMemberOf uniqueBody usageLocation userPrincipalName userType visibility
    webLink webUrl
"""
_RESOURCES: Final = """
    accessReviews administrativeUnits agreements analytics appCatalogs applications appRoleAssignedTo
    appRoleAssignments approleassignments approvals attachments auditLogs authentication
    authenticationMethods authorizationPolicy calendar calendarGroup calendarGroups calendars
    calendarView certificateBasedAuthConfiguration channel channels chats children columns
    communications conditionalAccess connections contactFolders contacts content contentTypes
    conversations createdObjects createUploadSession definitions deletedItems delta deviceManagement
    devices directory directoryAudits directoryObjects directoryRoles directoryRoleTemplates
    directReports domains drive drives education entitlementManagement events extensions external fields
    findRooms followedSites getMailTips getMemberGroups getMemberObjects getSchedule
    groupLifecyclePolicies groups historyItems hostedContents identity identityGovernance
    identityProtection inbox inferenceClassification informationProtection insights instances
    invitations items joinedTeams keyCredentials licenseDetails list lists mailboxSettings mailFolders
    managedDevices manager masterCategories me memberOf members messageRules messages namedLocations
    notebooks oauth2PermissionGrants onenote onlineMeetings organization outlook ownedDevices
    ownedObjects owners pages people permissionGrantPolicies permissionGrants permissions photo photos
    places planner plans policies presence presences primaryChannel print privacy provisioning
    registeredDevices registeredOwners registeredUsers replies reply replyAll reports resetPassword
    restore riskDetections riskyUsers roleAssignments roleDefinitions roleManagement rooms root
    schemaExtensions search sections security sendMail sentItems serviceHealth servicePrincipals
    settings shared sharedWithMe shares signIns site sites special subscribedSkus subscriptions subsites
    tasks teams teamwork termsOfUse termStore thumbnails todo transitiveMemberOf transitiveMembers users
    versions workbook worksheets
"""
# Names of Microsoft Graph that differ by one letter from another of its names. They are not misspelled, and
# never suggested.
_PAIRED: Final = """
    address addresses altitude audio calls chart charts column columns contents contracts contentTypes devices
    email emails extensions filters groups instance latitude license name names operations participant phone
    phones places plans point points range ranges recipient reply resource resources roleAssignment
    roleDefinition row rows rule rules scope scopes section sections sender set sets site sites street subject
    table tables tab tabs tasks team teams template templates term terms title users value values version
    versions video website websites workbook workbooks worksheet worksheets
"""
_ONLY_PROPERTIES: Final = """
    application call contract device domain event extension group message notification owner permission plan
    task user
"""
PAIRED: Final = frozenset(_PAIRED.split())
PAIRED_PROPERTIES: Final = frozenset(_ONLY_PROPERTIES.split())  # paths contain the plural of each
PROPERTIES: Final = frozenset(_PROPERTIES.split())
RESOURCES: Final = frozenset(_RESOURCES.split())
