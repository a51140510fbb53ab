"""Forms at /apps/{app}/… that add a credential to an application, remove it, or set its expiry time."""

from __future__ import annotations

from controlplane.console.apps import app
from controlplane.console.pages import PageRequest, Redirect, filled, form
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.credentials import (
    AddCertificate,
    AddedCredential,
    AddFederated,
    AddKey,
    CredentialReference,
    EndCredential,
    add_certificate,
    add_federated,
    add_key,
    end,
    remove,
)
from controlplane.operations.perform import perform

_FROM_NOW = "from the next sync of each proxy"


@form("/apps/{app}/federated", again=app)
async def federate(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(AddFederated, request.form, app=request.place["app"])
    return _added(request, await perform(add_federated, context, actor, asked), "federated credential")


@form("/apps/{app}/keys", again=app)
async def take_key(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(AddKey, request.form, app=request.place["app"])
    return _added(request, await perform(add_key, context, actor, asked), "public key")


@form("/apps/{app}/certificates", again=app)
async def take_certificate(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(AddCertificate, request.form, app=request.place["app"])
    return _added(request, await perform(add_certificate, context, actor, asked), "client certificate")


@form("/apps/{app}/credentials/{credential}/end", again=app)
async def set_end(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(
        EndCredential, request.form, app=request.place["app"], credential=request.place["credential"]
    )
    done = await perform(end, context, actor, asked)
    said = f"The credential {done.credential.id} ends {done.credential.ends_at}."
    return Redirect(request.link(f"/apps/{done.app_id}"), said)


@form("/apps/{app}/credentials/{credential}/remove", again=app)
async def drop(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = CredentialReference(app=request.place["app"], credential=request.place["credential"])
    done = await perform(remove, context, actor, asked)
    said = f"Proxies refuse the credential {done.id} and its tokens {_FROM_NOW}."
    return Redirect(request.link(f"/apps/{done.app_id}"), said)


def _added(request: PageRequest, added: AddedCredential, what: str) -> Redirect:
    said = f"The {what} {added.credential.id} proves this app {_FROM_NOW}."
    return Redirect(request.link(f"/apps/{added.app_id}"), said)
