// An application on microsoft-graph-client that prints the result of each step.

import { createHash } from "node:crypto";

import { DefaultAzureCredential } from "@azure/identity";
import graph from "@microsoft/microsoft-graph-client";

import { graphClient, proxy } from "./client.mjs";

const client = graphClient(new DefaultAzureCredential());
const ada = "/users/ada@contoso.com";

// The SDK removes only scheme and host from an address in a batch; the version is the batch's own.
const step = (id, path, dependsOn) => ({ id, request: new Request(`${proxy}${path}`), dependsOn });

async function refused(request) {
  try {
    await request.get();
  } catch (error) {
    const body = JSON.parse(error.body);
    return {
      type: error.constructor.name,
      status: error.statusCode,
      code: error.code,
      message: error.message,
      requestId: error.requestId,
      ruleId: body.ruleId,
      clientRequestId: body.innerError["client-request-id"],
    };
  }
  return {};
}

async function refusedStream(request) {
  try {
    await request.getStream();
  } catch (error) {
    // The SDK returns the body unparsed.
    const told = (await new Response(error.body).json()).error;
    return { type: error.constructor.name, status: error.statusCode, code: told.code, ruleId: told.ruleId };
  }
  return {};
}

const steps = {
  async pages() {
    const users = [];
    const page = await client.api("/users").top(5).get();
    await new graph.PageIterator(client, page, (user) => users.push(user)).iterate();
    return {
      names: users.map((user) => user.displayName),
      phones: users.filter((user) => "mobilePhone" in user).length,
      next: page["@odata.nextLink"],
    };
  },

  async long_page() {
    const page = await client.api("/groups/long").get();
    const following = await client.api(page["@odata.nextLink"]).get();
    return {
      sha256: createHash("sha256").update(page.value[0].description).digest("hex"),
      next: page["@odata.nextLink"],
      following: following.value.map((user) => user.displayName),
    };
  },

  async written() {
    const group = await client.api("/groups").post({ displayName: "Größe", mailEnabled: false });
    await client.api("/status/204").delete();
    return { created: group.id };
  },

  async delta() {
    let count = 0;
    const counted = () => ++count > 0;
    const pages = new graph.PageIterator(client, await client.api("/users/delta").get(), counted);
    await pages.iterate();
    const later = await client.api(pages.getDeltaLink()).get();
    return { count, later: later.value.length, delta: pages.getDeltaLink() };
  },

  async one_user() {
    const user = await client.api(ada).expand("manager").get();
    return { name: user.displayName, phone: user.mobilePhone ?? null, manager: user.manager };
  },

  async blocked() {
    const id = "6f8b9a54-0000-4000-8000-000000000001";
    return {
      mail: await refused(client.api(`${ada}/messages`).header("client-request-id", id)),
      download: await refusedStream(client.api("/drives/payroll/items/report/content")),
      default: await refused(client.api("/sites/root")),
      probe: await refused(client.api("/users").filter("startswith(mobilePhone,'+47')")),
      sorted: await refused(client.api("/users").orderby("mobilePhone")),
      searched: await refused(client.api("/users").search('"mobilePhone:+47"')),
    };
  },

  async upstream_errors() {
    return {
      missing: await refused(client.api("/groups/none")),
      broken: await refused(client.api("/groups/broken")),
    };
  },

  async batch() {
        const content = new graph.BatchRequestContent([
      step("user", ada),
      step("mail", `${ada}/messages`),
      step("page", "/users?$top=5"),
      step("operation", "/operations"),
    ]);
    const answer = await client.api("/$batch").post(await content.getContent());
    const answers = new graph.BatchResponseContent(answer);
    const page = await answers.getResponseById("page").json();
    const following = await client.api(page["@odata.nextLink"]).get();
    return {
      parts: Object.fromEntries(answer.responses.map((each) => [each.id, each])),
      following: following.value.map((user) => user.displayName),
    };
  },

  async dependent() {
    const parts = [step("mail", `${ada}/messages`), step("after", "/echo/after", ["mail"])];
    const content = await new graph.BatchRequestContent(parts).getContent();
    const answer = await client.api("/$batch").post(content);
    return Object.fromEntries(answer.responses.map((each) => [each.id, each.status]));
  },

  async faults() {
    const content = new graph.BatchRequestContent([step("1", "/v1.0/users")]);
    return { url: (await content.getContent()).requests[0].url };
  },

  async refused_batch() {
    const content = { requests: [{ id: "1", method: "GET", url: `/v1.0${ada}/messages` }] };
    try {
      await client.api("/$batch").post(content);
    } catch (error) {
      return { status: error.statusCode, code: error.code };
    }
    return {};
  },

  async retried() {
    const one = async (status) => (await client.api(`/groups/retried-${status}`).get()).value.length;
    return Promise.all([429, 503, 504].map(one));
  },

  async conditional() {
    const first = await client.api(`${ada}/photo/$value`).responseType("raw").get();
    const etag = first.headers.get("etag");
    const again = await client.api(`${ada}/photo/$value`).header("If-None-Match", etag).responseType("raw").get();
    return { first: first.status, again: again.status, bytes: (await first.arrayBuffer()).byteLength };
  },

  async headers() {
    const answer = await client
      .api("/echo/headers")
      .headers({ Prefer: 'outlook.timezone="Europe/Oslo"', ConsistencyLevel: "eventual" })
      .responseType("raw")
      .get();
    return { head: (await answer.json()).head, coding: answer.headers.get("content-encoding") };
  },

  async override() {
    const answers = {};
    for (const name of ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"]) {
      const answer = await client.api("/echo/override").header(name, "DELETE").responseType("raw").get();
      answers[name] = answer.status;
    }
    return answers;
  },

  async redirect() {
    const page = await client.api("/redirect").get();
    return page.value.map((user) => user.displayName);
  },

  async download() {
    const stream = await client.api("/drives/d/items/report/content").getStream();
    let bytes = 0;
    for await (const piece of stream) bytes += piece.length;
    return bytes;
  },

  async upload() {
    const data = Buffer.alloc(1024 * 1000, "0123456789abcdef");
    const target = "/drives/d/items/root:/report.bin:/createUploadSession";
    const session = await graph.LargeFileUploadTask.createUploadSession(client, target, {});
    const file = new graph.FileUpload(data, "report.bin", data.length);
    const task = new graph.LargeFileUploadTask(client, file, session, { rangeSize: 320 * 1024 });
    const result = await task.upload();
    return { url: session.url, bytes: data.length, size: result.responseBody.size };
  },
};

async function result([name, step]) {
  try {
    return [name, await step()];
  } catch (error) {
    return [name, { raised: `${error.stack} ${error.body ?? ""}` }];
  }
}

console.log(JSON.stringify(Object.fromEntries(await Promise.all(Object.entries(steps).map(result)))));
