// Asks for a token with every credential class that an application may hold, and uses it once.

import { ClientSecretCredential, DefaultAzureCredential, EnvironmentCredential } from "@azure/identity";
import { ConfidentialClientApplication } from "@azure/msal-node";

const proxy = process.env.AZURE_AUTHORITY_HOST; // the proxy's address, in the libraries' own name
const clientId = process.env.AZURE_CLIENT_ID;
const clientSecret = process.env.AZURE_CLIENT_SECRET;
const scope = "https://graph.microsoft.com/.default";
const claims = JSON.stringify({ access_token: { nbf: { essential: true, value: "1" } } });

async function used(token) {
  const answer = await fetch(`${proxy}/v1.0/echo/token`, { headers: { Authorization: `Bearer ${token}` } });
  await answer.text();
  return answer.status;
}

async function ofCredential(credential) {
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

async function ofMsal(tenant) {
  const application = new ConfidentialClientApplication({
    auth: {
      clientId,
      clientSecret,
      authority: `${proxy}/${tenant}`,
      knownAuthorities: [new URL(proxy).host],
    },
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

async function refused(tenant) {
  const credential = new ClientSecretCredential(tenant, clientId, "wrong", {
    authorityHost: proxy,
    disableInstanceDiscovery: true,
  });
  try {
    await credential.getToken(scope);
  } catch (error) {
    return { error: error.name, message: error.message };
  }
  return {};
}

const own = { authorityHost: proxy };
const other = { authorityHost: proxy, disableInstanceDiscovery: true };
const contoso = "contoso.onmicrosoft.com";
const results = {
  DefaultAzureCredential: await ofCredential(new DefaultAzureCredential()),
  EnvironmentCredential: await ofCredential(new EnvironmentCredential()),
  ClientSecretCredential: await ofCredential(new ClientSecretCredential("adfs", clientId, clientSecret, own)),
  "ClientSecretCredential of a tenant": await ofCredential(
    new ClientSecretCredential(contoso, clientId, clientSecret, other),
  ),
  msal: await ofMsal("adfs"),
  "msal of a tenant": await ofMsal(contoso),
  "wrong secret": await refused("adfs"),
  "wrong secret of a tenant": await refused(contoso),
};
console.log(JSON.stringify(results));
