// Makes calls with one of the two published SDKs of the Data API. Each line of its input is JSON, [the server's URL, a
// list of [function, request]]; it prints one line of JSON for each call: {"pages": [...]} or
// {"error": {"kind", "message", "statusCode"}}.
// Arguments: the SDK, and where it runs ("node", or "browser" as SDKs recognize one).
import { createInterface } from "node:readline";

const [sdk, runtime] = process.argv.slice(1);
const MOST_PAGES = 1000;
const inBrowser = runtime === "browser";
if (inBrowser) globalThis.window = { document: {} };
// There, chainkit identifies itself only by a header that its caller sets.
const headers = inBrowser && sdk === "chainkit" ? { "X-App-Component": "chainkit" } : {};

async function connected(serverURL) {
  if (sdk === "avacloud-sdk") {
    const { AvaCloudSDK } = await import("@avalabs/avacloud-sdk");
    return new AvaCloudSDK({ apiKey: "key", serverURL });
  }
  const { Avalanche } = await import("@avalanche-sdk/chainkit");
  // Its telemetry goes to its vendor.
  return new Avalanche({ apiKey: "key", enableTelemetry: false });
}

async function pages(answer) {
  if (answer?.[Symbol.asyncIterator] === undefined) return [answer];
  const found = [];
  for await (const page of answer) {
    found.push(page.result);
    if (found.length === MOST_PAGES) throw new Error("its pages have no end");
  }
  return found;
}

async function outcome(client, serverURL, path, request) {
  const names = path.split(".");
  const owner = names.slice(0, -1).reduce((inner, name) => inner[name], client);
  try {
    // Both ignore the client's own server URL.
    const options = { serverURL, headers, retries: { strategy: "none" } };
    return { pages: await pages(await owner[names.at(-1)](request, options)) };
  } catch (error) {
    const { message, statusCode } = error;
    return { error: { kind: error.constructor.name, message, statusCode } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [serverURL, calls] = JSON.parse(line);
  const client = await connected(serverURL);
  for (const [path, request] of calls) {
    console.log(JSON.stringify(await outcome(client, serverURL, path, request)));
  }
}
