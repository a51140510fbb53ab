"""The address and the tokens of the proxy, in the form that an application with msgraph-sdk needs."""

import os
from typing import Any
from urllib.parse import urlsplit

from kiota_authentication_azure.azure_identity_authentication_provider import (
    AzureIdentityAuthenticationProvider,
)
from msgraph import GraphRequestAdapter, GraphServiceClient

PROXY = os.environ["AZURE_AUTHORITY_HOST"]
SCOPE = "https://graph.microsoft.com/.default"


def graph_client(credential: Any) -> GraphServiceClient:
    provider = AzureIdentityAuthenticationProvider(
        credential, scopes=[SCOPE], allowed_hosts=[str(urlsplit(PROXY).hostname)]
    )
    adapter = GraphRequestAdapter(provider)
    adapter.base_url = f"{PROXY}/v1.0"
    return GraphServiceClient(request_adapter=adapter)
