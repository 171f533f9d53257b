// Sign, page and read an error with the types that openapi-typescript generates.
// Arguments: URL of a daemon that signs, an unsigned message in hex, URL of a daemon with an index.
// Prints one JSON object.
import createClient from "openapi-fetch";

import type { components, paths } from "./warpseal.js";

const [signerUrl, message, historyUrl] = process.argv.slice(2);
const signer = createClient<paths>({ baseUrl: signerUrl });
const history = createClient<paths>({ baseUrl: historyUrl });
const aggregate = "/v1/signatureAggregator/{network}/aggregateSignatures";
const path = { network: "fuji" };

const signed = await signer.POST(aggregate, { params: { path }, body: { message } });
if (signed.error) throw new Error(signed.error.message);

const hashes: string[] = [];
let pageToken: string | undefined;
do {
  const page = await history.GET("/v1/networks/{network}/blockchains/{blockchainId}/transactions", {
    params: { path: { ...path, blockchainId: "p-chain" }, query: { pageSize: 3, pageToken } },
  });
  if (page.error) throw new Error(page.error.message);
  const transactions: components["schemas"]["PChainTransactions"] = page.data as never;
  hashes.push(...transactions.transactions.map((transaction) => transaction.txHash));
  pageToken = transactions.nextPageToken;
} while (pageToken);

const refusal = await signer.POST(aggregate, { params: { path }, body: { message: "00" } });
if (!refusal.error) throw new Error("a message of one byte was signed");

const error = { status: refusal.error.statusCode, code: refusal.error.code };
console.log(JSON.stringify({ signedMessage: signed.data.signedMessage, transactions: hashes, error }));
