// Makes calls with one of the two published SDKs of the Data API, and prints one line of JSON for each of them:
// {"pages": [...]} or {"error": {"kind", "message", "statusCode"}}.
// Arguments: the SDK, the server's URL, where it runs ("node", or "browser" as SDKs recognize one), and a list of
// [function, request].
const [sdk, serverURL, runtime, calls] = process.argv.slice(2);
const MOST_PAGES = 1000;
const inBrowser = runtime === "browser";
if (inBrowser) globalThis.window = { document: {} };
// There, chainkit identifies itself only by a header that its caller sets.
const headers = inBrowser && sdk === "chainkit" ? { "X-App-Component": "chainkit" } : {};

async function connected() {
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

async function outcome(client, path, request) {
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

const client = await connected();
for (const [path, request] of JSON.parse(calls)) console.log(JSON.stringify(await outcome(client, path, request)));
