// Send requests before and after the token is revoked.

import { once } from "node:events";

import { DefaultAzureCredential } from "@azure/identity";

import { graphClient } from "./client.mjs";

const credential = new DefaultAzureCredential();
const client = graphClient(credential);
const name = async () => (await client.api("/users/ada@contoso.com").get()).displayName;

const before = await name();
console.log("ready");
await once(process.stdin, "data");
process.stdin.destroy();

let error = {};
try {
  await name();
} catch (caught) {
  const challenge = caught.headers.get("www-authenticate") ?? "";
  const claims = atob(/claims="([^"]+)"/.exec(challenge)?.[1] ?? "");
  error = { status: caught.statusCode, code: caught.code, challenged: claims !== "" };
  await credential.getToken("https://graph.microsoft.com/.default", { claims });
}
console.log(JSON.stringify({ before, error, after: await name() }));
