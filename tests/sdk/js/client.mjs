// Everything that an application on microsoft-graph-client needs for the proxy: its address, and tokens from it.

import graph from "@microsoft/microsoft-graph-client";
import azure from "@microsoft/microsoft-graph-client/authProviders/azureTokenCredentials/index.js";

export const proxy = process.env.AZURE_AUTHORITY_HOST;

export function graphClient(credential) {
  return graph.Client.initWithMiddleware({
    authProvider: new azure.TokenCredentialAuthenticationProvider(credential, {
      scopes: ["https://graph.microsoft.com/.default"],
    }),
    baseUrl: `${proxy}/`,
    customHosts: new Set([new URL(proxy).hostname]),
  });
}
