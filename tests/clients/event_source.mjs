// Listens with the package eventsource, which other clients bring, and prints one line of JSON for each call:
// {"events": [{"id", "data"}], "errors"}; errors: how often the connection broke.
// Arguments: the server's URL, and a list of [path, {count}].
import { EventSource } from "eventsource";

const [url, calls] = process.argv.slice(2);

function listen(path, { count }) {
  return new Promise((resolve) => {
    const source = new EventSource(url + path);
    const events = [];
    let errors = 0;
    source.onerror = () => (errors += 1);
    source.onmessage = ({ lastEventId, data }) => {
      events.push({ id: lastEventId, data });
      if (events.length < count) return;
      source.close();
      resolve({ events, errors });
    };
  });
}

for (const call of JSON.parse(calls)) console.log(JSON.stringify(await listen(...call)));
