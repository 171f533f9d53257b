// Verifies requests of webhooks with @avalanche-sdk/chainkit, and prints one line of JSON for each: {"error"}, the name
// of the SDK's error. Behind the signature the SDK checks the body, of which it has other schemas than ours.
// Arguments: a list of [secret, signature, body].
import { Avalanche } from "@avalanche-sdk/chainkit";

const sdk = new Avalanche();
for (const [secret, signature, body] of JSON.parse(process.argv[2])) {
  const request = { method: "POST", url: "https://receiver.example", headers: { "x-signature": signature }, body };
  const error = await sdk.validateWebhook({ request, secret }).then(() => undefined, (error) => error.constructor.name);
  console.log(JSON.stringify({ error }));
}
