"""Sample data of the suites: request heads of a Graph SDK, response heads of Graph, users, and rules."""

import json

TOKEN = "e" * 480

REQUEST = (
    b"GET /v1.0/users/ada@contoso.com?$select=id,displayName HTTP/1.1\r\nHost: graph.contoso.example\r\n"
    b"Authorization: Bearer " + TOKEN.encode() + b"\r\nUser-Agent: python/3.11 msgraph-sdk-python/1.2\r\n"
    b"Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
    b"client-request-id: 0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f\r\nSdkVersion: graph-python/1.2\r\n"
    b"ConsistencyLevel: eventual\r\nConnection: keep-alive\r\n\r\n"
)

RESPONSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nCache-Control: no-cache\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json;odata.metadata=minimal;odata.streaming=true;charset=utf-8\r\n"
    b"Strict-Transport-Security: max-age=31536000\r\nrequest-id: 0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f\r\n"
    b"client-request-id: 0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f\r\n"
    b'x-ms-ags-diagnostic: {"ServerInfo":{"DataCenter":"North Europe","Slice":"E","Ring":"4"}}\r\n'
    b"OData-Version: 4.0\r\nDate: Sat, 21 Nov 2026 04:25:58 GMT\r\n\r\n"
)


def user(number: int) -> dict[str, object]:
    """Return a sample Graph user with about twenty properties."""
    return {
        "id": f"87d349ed-44d7-43e1-9a83-{number:012d}",
        "businessPhones": [f"+1 425 555 {number:04d}", "+1 425 555 0100"],
        "displayName": f"Adele Vance {number}",
        "givenName": "Adele",
        "jobTitle": "Retail Manager",
        "mail": f"adele{number}@contoso.onmicrosoft.com",
        "mobilePhone": f"+1 206 555 {number:04d}",
        "officeLocation": "18/2111",
        "preferredLanguage": "en-US",
        "surname": "Vance",
        "userPrincipalName": f"adele{number}@contoso.onmicrosoft.com",
        "accountEnabled": True,
        "city": "Seattle",
        "companyName": "Contoso",
        "country": "United States",
        "department": "Retail",
        "employeeId": str(number),
        "otherMails": [f"a{number}@example.com"],
        "proxyAddresses": [f"SMTP:adele{number}@contoso.com", f"smtp:a{number}@contoso.com"],
        "onPremisesExtensionAttributes": {"extensionAttribute1": None, "extensionAttribute2": "x"},
        "assignedLicenses": [{"disabledPlans": [], "skuId": "c7df2760-2c81-4ef7-b578-5b5392b571df"}],
        "createdDateTime": "2019-10-18T13:57:40Z",
        "streetAddress": "9256 Towne Center Dr., Suite 400",
    }


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


ONE_USER = compact(
    {
        "@odata.context": "https://graph.microsoft.com/v1.0/$metadata#users(manager())/$entity",
        **user(1),
        "manager": {
            "@odata.type": "#microsoft.graph.user",
            "id": user(2)["id"],
            "displayName": "Miriam Graham",
        },
    }
)
USERS = compact(
    {
        "@odata.context": "https://graph.microsoft.com/v1.0/$metadata#users",
        "value": [user(number) for number in range(100)],
    }
)
RESPONSE = RESPONSE_HEAD % len(ONE_USER) + ONE_USER


def rules(count: int) -> str:
    """Return a ruleset of which two rules match the sample request."""
    unrelated = "".join(
        f'  - {{id: u{number}, match: {{path: ["/v1.0/r{number}/{{id}}"]}}, verdict: allow}}\n'
        for number in range(count - 2)
    )
    return (
        "version: 1\nname: bench\ndefault: block\nrules:\n"
        "  - id: watch\n    match: {path: [/v1.0/users, '/v1.0/users/{id}']}\n    verdict: log_only\n"
        + unrelated
        + "  - id: users\n    match: {methods: [GET], path: [/v1.0/users, '/v1.0/users/{id}']}\n"
        "    conditions: [{header: ConsistencyLevel, equals: eventual}]\n"
        "    ip: {in: [10.0.0.0/8, 127.0.0.0/8]}\n    verdict: allow\n"
    )
