// Relay the ICM messages of a route: listen, have each message signed, deliver it. See ../README.md.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { Avalanche } from "@avalanche-sdk/chainkit";
import type { GlobalParamNetwork } from "@avalanche-sdk/chainkit/models/components";
import { AvalancheError } from "@avalanche-sdk/chainkit/models/errors";
import { concat, createPublicClient, createWalletClient, decodeAbiParameters, http, pad, parseAbi } from "viem";
import { parseAbiParameters, size, slice, type Address, type Hex } from "viem";
import { privateKeyToAccount } from "viem/accounts";

type Event = { cursor: string; messageId: Hex; data: { icmMessageId: Hex; txHash: Hex } };

const env = process.env as Record<string, string>;
const proposervm = http(`${env.NODE_URL}/ext/bc/${env.DESTINATION_BLOCKCHAIN_ID}/proposervm`)({});
const WARP = "0x0200000000000000000000000000000000000005";
const MESSENGER = env.MESSENGER.toLowerCase() as Address;
const abi = parseAbi([
  "function messageReceived(bytes32) view returns (bool)",
  "function receiveCrossChainMessage(uint32, address)",
]);
const MESSAGE = parseAbiParameters([
  "Message message",
  "struct Message { uint256 nonce; address sender; bytes32 destination; address recipient; uint256 gasLimit; address[] relayers; Receipt[] receipts; bytes body; }",
  "struct Receipt { uint256 nonce; address relayer; }",
]);
const account = privateKeyToAccount(env.PRIVATE_KEY as Hex);
const source = createPublicClient({ transport: http(env.SOURCE_RPC_URL) });
const destination = createPublicClient({ transport: http(env.DESTINATION_RPC_URL), pollingInterval: 500 });
const wallet = createWalletClient({ account, transport: http(env.DESTINATION_RPC_URL) });
let sending: Promise<unknown> = Promise.resolve();
const sdk = new Avalanche({ apiKey: "none", enableTelemetry: false });

/** Trying again does not help. */
class Refused extends Error {}

/** Yields cursors, some with an event; when the connection breaks, it continues behind the last cursor. */
async function* listen(cursor: string): AsyncGenerator<[string, Event | undefined]> {
  const route = `sourceBlockchainId=${env.SOURCE_BLOCKCHAIN_ID}&destinationBlockchainId=${env.DESTINATION_BLOCKCHAIN_ID}`;
  const url = `${env.DAEMON_URL}/v1/events?types=icm_sent&${route}`;
  for (;;) {
    try {
      const response = await fetch(url, { headers: cursor ? { "Last-Event-ID": cursor } : {} });
      if (!response.ok || !response.body) {
        const error = await response.json();
        if (error.code === "cursor_expired") cursor = error.detail.oldest;
        throw new Error(error.message);
      }
      let text = "";
      for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
        const parts = (text + chunk).split("\n\n");
        text = parts.pop() ?? "";
        for (const part of parts) {
          cursor = /^id: (.*)$/m.exec(part)?.[1] ?? cursor;
          const data = /^data: (.*)$/m.exec(part)?.[1];
          yield [cursor, data && JSON.parse(data)];
        }
      }
    } catch (error) {
      console.log("reconnecting:", (error as Error).message);
    }
    await sleep(2000);
  }
}

/** Returns the signed message. The SDK has no destinations, so its epoch is asked for: its validators have to sign. */
async function sign(message: Hex): Promise<Hex> {
  const epoch = await proposervm.request({ method: "proposervm.getCurrentEpoch", params: {} });
  const { pChainHeight } = epoch as { pChainHeight: string };
  const request = {
    network: env.NETWORK as GlobalParamNetwork,
    signatureAggregatorRequest: { message, pChainHeight: Number(pChainHeight) },
  };
  try {
    const options = { serverURL: env.DAEMON_URL, retries: { strategy: "none" as const } };
    return `0x${(await sdk.data.signatureAggregator.aggregate(request, options)).signedMessage}`;
  } catch (error) {
    const isFinal = error instanceof AvalancheError && !error.headers.has("Retry-After");
    throw isFinal ? new Refused(error.message) : error;
  }
}

/** Delivers the message of an event; returns the hash of the transaction. */
async function relay(event: Event): Promise<Hex> {
  const receipt = await source.getTransactionReceipt({ hash: event.data.txHash });
  const topics = String([pad(MESSENGER), event.messageId]);
  const log = receipt.logs.find((entry) => entry.address === WARP && String(entry.topics.slice(1)) === topics);
  if (!log) throw new Refused("its transaction has no Warp message of the messenger");
  const [unsigned] = decodeAbiParameters([{ type: "bytes" }], log.data);
  // Before it: codec, network, source, and lengths of 42 bytes, then codec, type, sender and lengths of 34.
  const payload = slice(unsigned, 42 + 34);
  const [{ gasLimit, relayers, receipts }] = decodeAbiParameters(MESSAGE, payload);
  if (relayers.length && !relayers.includes(account.address)) {
    throw new Refused(`only these relayers may deliver it: ${relayers.join(", ")}`);
  }
  const messenger = { address: MESSENGER, abi, args: [event.data.icmMessageId] } as const;
  if (await destination.readContract({ ...messenger, functionName: "messageReceived" })) {
    throw new Refused("it was delivered before");
  }
  const signed = await sign(unsigned);
  // A block verifies what is in the access list: the signed message, 0xff, and zeros up to a whole word.
  const words = Math.ceil((size(signed) + 1) / 32);
  const predicate = pad(concat([signed, "0xff"]), { dir: "right", size: 32 * words });
  const storageKeys = Array.from({ length: words }, (_, place) => slice(predicate, 32 * place, 32 * place + 32));
  // The formula of icm-services, for as many signers as their bits, which follow the message and two lengths, before
  // the signature. A node cannot estimate it, because calls verify no access list.
  const signers = 8 * (size(signed) - size(unsigned) - 4 - 4 - 96);
  const gas = 375_750n + gasLimit + BigInt(1024 * words + 35 * size(payload) + 2500 * receipts.length + 250 * signers);
  const call = { ...messenger, functionName: "receiveCrossChainMessage", args: [0, account.address], chain: null } as const;
  return send(() => wallet.writeContract({ ...call, accessList: [{ address: WARP, storageKeys }], gas }));
}

/** Waits for the block of a transaction. One by one, since each needs the nonce behind the last. */
function send(write: () => Promise<Hex>): Promise<Hex> {
  const sent = sending.then(async () => {
    const hash = await write();
    const { status } = await destination.waitForTransactionReceipt({ hash, timeout: 60_000 });
    if (status !== "success") throw new Refused(`the transaction ${hash} reverted`);
    return hash;
  });
  sending = sent.catch(() => undefined);
  return sent;
}

/** Relays a message; tries again until it is delivered or refused. */
async function work(event: Event): Promise<void> {
  for (;;) {
    try {
      return console.log("delivered", event.messageId, await relay(event));
    } catch (error) {
      const message = (error as Error).message.split("\n")[0];
      if (error instanceof Refused) return console.log("refused", event.messageId, message);
      console.log("waiting", event.messageId, message);
    }
    await sleep(2000);
  }
}

// The file has the cursor before the oldest message that is not done.
let cursor = existsSync(env.CURSOR_FILE) ? readFileSync(env.CURSOR_FILE, "utf8") : "";
const before = new Map<string, string>();
for await (const [next, event] of listen(cursor)) {
  if (event?.messageId) {
    before.set(event.cursor, cursor);
    void work(event).then(() => before.delete(event.cursor));
  }
  cursor = next;
  writeFileSync(`${env.CURSOR_FILE}.new`, [...before.values()][0] ?? cursor);
  renameSync(`${env.CURSOR_FILE}.new`, env.CURSOR_FILE);
}
