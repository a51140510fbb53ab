// Request a token without a shared secret, with every class that an application may use, and use it once.

import { readFileSync } from "node:fs";
import { ClientAssertionCredential, ClientCertificateCredential, WorkloadIdentityCredential } from "@azure/identity";
import { claims, clientId, contoso, ofCredential, ofMsal, other, own, refused, scope } from "./uses.mjs";

const tokenFilePath = process.env.AZURE_FEDERATED_TOKEN_FILE;
const certificate = process.env.CERTIFICATE_FILE; // with its private key
const otherCertificate = process.env.OTHER_CERTIFICATE_FILE;
const unused = readFileSync(process.env.ASSERTIONS_FILE, "utf8").trim().split("\n"); // each brings one token
const fresh = async () => unused.pop();

const workload = { tenantId: "adfs", clientId, tokenFilePath };
const one = await fresh();
const again = new ClientAssertionCredential("adfs", clientId, async () => one, own);
await again.getToken(scope);
const stranger = new ClientCertificateCredential("adfs", clientId, { certificatePath: otherCertificate }, own);
const results = {
  ClientAssertionCredential: await ofCredential(new ClientAssertionCredential("adfs", clientId, fresh, own)),
  "ClientAssertionCredential of a tenant": await ofCredential(
    new ClientAssertionCredential(contoso, clientId, fresh, other),
  ),
  WorkloadIdentityCredential: await ofCredential(new WorkloadIdentityCredential({ ...workload, ...own })),
  ClientCertificateCredential: await ofCredential(
    new ClientCertificateCredential("adfs", clientId, { certificatePath: certificate }, own),
  ),
  "ClientCertificateCredential of a tenant": await ofCredential(
    new ClientCertificateCredential(contoso, clientId, { certificatePath: certificate }, other),
  ),
  "msal with an assertion": await ofMsal("adfs", { clientAssertion: fresh }),
  "assertion used twice": await refused(() => again.getToken(scope, { claims, enableCae: true })),
  "certificate of another": await refused(() => stranger.getToken(scope)),
};
console.log(JSON.stringify(results));
