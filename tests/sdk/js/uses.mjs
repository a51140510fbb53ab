// The expected behaviour of each class of a library: it gets, caches, renews and uses tokens, or is refused.

import { ConfidentialClientApplication } from "@azure/msal-node";

const proxy = process.env.AZURE_AUTHORITY_HOST; // the proxy's address, in the libraries' own name
export const clientId = process.env.AZURE_CLIENT_ID;
export const scope = "https://graph.microsoft.com/.default";
export const claims = JSON.stringify({ access_token: { nbf: { essential: true, value: "1" } } });
export const contoso = "contoso.onmicrosoft.com";
export const own = { authorityHost: proxy };
export const other = { authorityHost: proxy, disableInstanceDiscovery: true };

async function used(token) {
  const answer = await fetch(`${proxy}/v1.0/echo/token`, { headers: { Authorization: `Bearer ${token}` } });
  await answer.text();
  return answer.status;
}

export async function ofCredential(credential) {
  const first = await credential.getToken(scope);
  const cached = await credential.getToken(scope);
  const renewed = await credential.getToken(scope, { claims, enableCae: true });
  return {
    status: await used(first.token),
    cached: cached.token === first.token,
    renewed: renewed.token !== first.token,
    expires: Number.isInteger(first.expiresOnTimestamp) && first.expiresOnTimestamp > Date.now(),
  };
}

export async function ofMsal(tenant, credential) {
  const application = new ConfidentialClientApplication({
    auth: { clientId, authority: `${proxy}/${tenant}`, knownAuthorities: [new URL(proxy).host], ...credential },
  });
  const first = await application.acquireTokenByClientCredential({ scopes: [scope] });
  const cached = await application.acquireTokenByClientCredential({ scopes: [scope] });
  const renewed = await application.acquireTokenByClientCredential({ scopes: [scope], claims });
  return {
    status: await used(first.accessToken),
    cached: cached.accessToken === first.accessToken,
    renewed: renewed.accessToken !== first.accessToken,
    expires: first.expiresOn > new Date(),
  };
}

export async function refused(getToken) {
  try {
    await getToken();
  } catch (error) {
    return { error: error.name, message: error.message };
  }
  return {};
}
