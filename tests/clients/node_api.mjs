// Makes calls with @avalanche-sdk/client, and prints one line of JSON for each of them:
// {"result", "sent"} or {"error": {"code", "message"}, "sent"}; sent: the requests that went out, path and body.
// Arguments: the server's URL, and a list of [path of the chain's RPC, function, what it is called with].
import { createAvalancheClient } from "@avalanche-sdk/client";
import { avalancheFuji } from "@avalanche-sdk/client/chains";
import { createPublicClient, http } from "viem";

const [url, calls] = process.argv.slice(2);
const clients = new Map();
const print = console.log;
// Some functions log their own calls.
console.log = console.error;

let sent = [];
const really = globalThis.fetch;
globalThis.fetch = async (input, init) => {
  const request = new Request(input, init);
  const { pathname } = new URL(request.url);
  sent.push({ path: pathname, type: request.headers.get("content-type"), body: await request.clone().json() });
  return really(request);
};

function connected(path) {
  if (!clients.has(path)) {
    // Of a chain that it knows it has more than the RPC; of the URL it takes the origin for that.
    const transport = { type: "http", url: url + path, config: { retryCount: 0 } };
    clients.set(path, createAvalancheClient({ chain: avalancheFuji, transport }));
  }
  return clients.get(path);
}

// What it has beyond the client that it is made of.
function functions(client) {
  const plain = new Set(Object.keys(createPublicClient({ chain: avalancheFuji, transport: http(url) })));
  const own = (part) => Object.keys(part).filter((name) => typeof part[name] === "function" && !plain.has(name));
  return { admin: own(client.admin), health: own(client.health), public: own(client) };
}

async function outcome(path, name, args) {
  const client = connected(path);
  if (name === "functions") return { result: functions(client) };
  const names = name.split(".");
  const owner = names.slice(0, -1).reduce((inner, part) => inner[part], client);
  try {
    return { result: await owner[names.at(-1)](args) };
  } catch (error) {
    const { code, details } = error.walk ? error.walk() : error;
    return { error: { code: error.code ?? code, message: error.details ?? details ?? error.message } };
  }
}

const plainly = (_, value) => {
  if (typeof value === "bigint") return value.toString();
  return value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;
};
for (const call of JSON.parse(calls)) {
  sent = [];
  print(JSON.stringify({ ...(await outcome(...call)), sent }, plainly));
}
