// Request a token with every credential class that an application may use, and use it once.

import { ClientSecretCredential, DefaultAzureCredential, EnvironmentCredential } from "@azure/identity";
import { clientId, contoso, ofCredential, ofMsal, other, own, refused, scope } from "./uses.mjs";

const clientSecret = process.env.AZURE_CLIENT_SECRET;

const wrong = (tenant) => new ClientSecretCredential(tenant, clientId, "wrong", other);
const results = {
  DefaultAzureCredential: await ofCredential(new DefaultAzureCredential()),
  EnvironmentCredential: await ofCredential(new EnvironmentCredential()),
  ClientSecretCredential: await ofCredential(new ClientSecretCredential("adfs", clientId, clientSecret, own)),
  "ClientSecretCredential of a tenant": await ofCredential(
    new ClientSecretCredential(contoso, clientId, clientSecret, other),
  ),
  msal: await ofMsal("adfs", { clientSecret }),
  "msal of a tenant": await ofMsal(contoso, { clientSecret }),
  "wrong secret": await refused(() => wrong("adfs").getToken(scope)),
  "wrong secret of a tenant": await refused(() => wrong(contoso).getToken(scope)),
};
console.log(JSON.stringify(results));
