// Makes calls with @avalabs/glacier-sdk, and prints one line of JSON for each of them:
// {"result"} or {"error": {"kind", "status", "body"}}.
// Arguments: the server's URL, and a list of [function, request].
import glacier from "@avalabs/glacier-sdk";

const [url, calls] = process.argv.slice(2);
const client = new glacier.Glacier({ BASE: url });

async function outcome(path, request) {
  const [service, name] = path.split(".");
  try {
    return { result: await client[service][name](request) };
  } catch (error) {
    return { error: { kind: error instanceof glacier.ApiError ? "ApiError" : String(error), status: error.status, body: error.body } };
  }
}

for (const call of JSON.parse(calls)) console.log(JSON.stringify(await outcome(...call)));
