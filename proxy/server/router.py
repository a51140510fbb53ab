"""Choose the handler of a request by its target."""

from __future__ import annotations

from proxy.server.client.connection import ClientConnection
from proxy.server.client.handler import RequestHandler
from proxy.server.context import Context
from proxy.server.exchange.exchange import Exchange
from proxy.server.http1.request_head import RequestHead
from proxy.server.token_endpoint.endpoint import token_exchange_for


def handler_for(context: Context, connection: ClientConnection, head: RequestHead) -> RequestHandler:
    """Return the handler of a request: an endpoint of the proxy, or an exchange with the upstream."""
    if head.target.startswith(("/v1.0/", "/beta/")):
        return Exchange(context, connection, head)
    return token_exchange_for(context, connection, head) or Exchange(context, connection, head)
