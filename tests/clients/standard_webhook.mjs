// Verifies requests of webhooks with the published library of Standard Webhooks, and prints one line of JSON for each:
// {"verified"}. Arguments: a list of [secret, headers, body].
import { Webhook } from "standardwebhooks";

for (const [secret, headers, body] of JSON.parse(process.argv[2])) {
  let verified = true;
  try {
    new Webhook(secret).verify(body, Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toLowerCase(), v])));
  } catch {
    verified = false;
  }
  console.log(JSON.stringify({ verified }));
}
