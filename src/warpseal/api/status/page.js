"use strict";
// Keeps the page up to date by server-sent events, sorts and filters the validators. The server escapes all it sends.
(() => {
  const byId = (id) => document.getElementById(id);
  const rows = byId("rows"), search = byId("search"), subnet = byId("subnet"), state = byId("state-filter"), live = byId("live"), unfold = byId("unfold");
  let column = -1, isDescending = false, retry = 0;

  const ago = (seconds) => {
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    if (Math.abs(seconds) < 2) return "now";
    const [size, name] = units.find(([unit]) => Math.abs(seconds) >= unit);
    const count = Math.floor(Math.abs(seconds) / size);
    return seconds < 0 ? `in ${count} ${name}` : `${count} ${name} ago`;
  };
  // Nothing in a forecast lies in the past; a change of the page has a moment, which reads well at any time.
  const textOfTime = (time, now) => {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    if (time.id === "time") return time.dateTime.replace("T", " ").replace("Z", " UTC");
    return time.className === "coming" && seconds > 0 ? "now" : ago(seconds);
  };
  const showTimes = (root) => {
    const now = Date.now();
    for (const time of root.querySelectorAll("time")) {
      const text = textOfTime(time, now);
      if (time.textContent !== text) time.textContent = text;
      time.title = time.dateTime;
    }
  };
  // A browser lays out more rows too slowly.
  const MAX_SHOWN = 500;
  const MAX_FOLDED = 50;
  const texts = new WeakMap();
  const textOf = (row) => {
    // Ids are shortened; all of them are titles.
    if (!texts.has(row)) texts.set(row, [row.textContent, ...[...row.querySelectorAll("code[title]")].map((code) => code.title)].join(" ").toLowerCase());
    return texts.get(row);
  };
  const addCopyButtons = (root) => {
    for (const code of root.querySelectorAll("code[title]")) {
      if (code.firstElementChild) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.setAttribute("aria-label", `Copy ${code.title}`);
      code.append(button);
    }
  };
  const copy = async (text) => {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {
      // Browsers refuse it, or have no clipboard over plain HTTP from another machine.
    }
    const area = document.createElement("textarea");
    area.className = "clipboard";
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  const matches = (row) =>
    (!subnet.value || row.dataset.subnet === subnet.value) &&
    (!state.value || (state.value === "missing") === (row.dataset.state !== "connected")) &&
    (!search.value || textOf(row).includes(search.value.trim().toLowerCase()));
  const filter = () => {
    let count = 0;
    for (const row of rows.rows) {
      const isMatch = matches(row);
      row.hidden = !isMatch || count >= MAX_SHOWN;
      if (!row.hidden) addCopyButtons(row);
      count += isMatch;
    }
    const limit = unfold.checked ? MAX_SHOWN : MAX_FOLDED;
    const note = count > limit ? `, the first ${limit} are shown` : "";
    byId("fold").hidden = count <= MAX_FOLDED;
    byId("count").textContent = `${count} of ${rows.rows.length}${note}`;
  };
  const valueOf = (row) => {
    const cell = row.cells[column], value = cell.dataset.value;
    return value === undefined ? cell.textContent : value === "" ? "" : Number(value);
  };
  const compare = (a, b) => {
    // Rows without a value come last in either direction.
    if (a.value === "" || b.value === "") return (a.value === "") - (b.value === "");
    const order = a.value < b.value ? -1 : a.value > b.value ? 1 : 0;
    return isDescending ? -order : order;
  };
  // Missing validators first, then in the order of the subnets, the heaviest first.
  const byDefault = () => {
    const places = new Map([...document.querySelectorAll("#subnets [data-subnet]")].map((card, place) => [card.dataset.subnet, place]));
    const keyOf = (row) => [row.dataset.state === "connected" ? 1 : 0, places.get(row.dataset.subnet) ?? 0, -Number(row.cells[2].dataset.value)];
    const keyed = [...rows.rows].map((row) => ({ row, key: keyOf(row) }));
    return keyed.sort((a, b) => a.key[0] - b.key[0] || a.key[1] - b.key[1] || a.key[2] - b.key[2]);
  };
  const sort = () => {
    const sorted = column < 0 ? byDefault() : [...rows.rows].map((row) => ({ row, value: valueOf(row) })).sort(compare);
    if (sorted.some(({ row }, place) => rows.rows[place] !== row)) rows.append(...sorted.map(({ row }) => row));
  };
  const listSubnets = () => {
    const ids = [...document.querySelectorAll("#subnets [data-subnet]")].map((card) => card.dataset.subnet);
    if (ids.join() === [...subnet.options].slice(1).map((option) => option.value).join()) return;
    const chosen = subnet.value;
    subnet.length = 1;
    const nameOf = (id) => document.querySelector(`#subnets [data-subnet="${id}"] > [title]`).firstChild.textContent;
    for (const id of ids) subnet.add(new Option(nameOf(id), id));
    subnet.value = ids.includes(chosen) ? chosen : "";
  };
  const refresh = () => {
    listSubnets();
    sort();
    filter();
  };
  const apply = (change) => {
    for (const [id, html] of Object.entries(change.sections)) {
      const lists = () => [...byId(id).querySelectorAll("details")].map((list) => [list.dataset.of, list]);
      const before = new Map(lists().map(([subnetId, list]) => [subnetId, list.open]));
      byId(id).innerHTML = html;
      for (const [subnetId, list] of lists()) list.open = before.get(subnetId) ?? list.open;
      showTimes(byId(id));
      addCopyButtons(byId(id));
    }
    const template = document.createElement("template");
    template.innerHTML = Object.values(change.rows).join("");
    const fresh = new Set();
    for (const row of [...template.content.children]) {
      fresh.add(row.id);
      const old = byId(row.id);
      if (old) old.replaceWith(row);
      else rows.append(row);
      showTimes(row);
    }
    for (const row of [...rows.rows]) if (change.isComplete ? !fresh.has(row.id) : change.gone.includes(row.id)) row.remove();
    byId("time").dateTime = change.time;
    showTimes(byId("time").parentElement);
    document.documentElement.dataset.version = change.version;
    refresh();
  };
  const setLive = (text, kind) => {
    live.textContent = text;
    live.className = `pill ${kind}`;
  };
  const connect = () => {
    const source = new EventSource(`/status/events?version=${encodeURIComponent(document.documentElement.dataset.version)}`);
    source.onopen = () => setLive("live", "ok");
    source.onmessage = (event) => apply(JSON.parse(event.data));
    source.onerror = () => {
      setLive("not live", "warn");
      if (source.readyState !== EventSource.CLOSED) return;
      clearTimeout(retry);
      retry = setTimeout(connect, 15000);
    };
  };

  for (const [place, button] of [...document.querySelectorAll("#validators th button")].entries()) {
    button.addEventListener("click", () => {
      isDescending = column === place ? !isDescending : button.dataset.first === "descending";
      column = place;
      for (const other of document.querySelectorAll("#validators th")) other.removeAttribute("aria-sort");
      button.parentElement.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      sort();
      filter();
    });
  }
  for (const control of [search, subnet, state, unfold]) control.addEventListener("input", filter);
  document.addEventListener("click", async ({ target }) => {
    if (!target.matches(".copy")) return;
    await copy(target.parentElement.title);
    target.classList.add("done");
    setTimeout(() => target.classList.remove("done"), 1500);
  });
  // The life of one ICM message. Anyone may have sent it: all of it is set as text.
  let lookups = 0;
  const addPart = (parent, name, text, kind = "") => {
    const part = document.createElement(name);
    part.textContent = text;
    part.className = kind;
    parent.append(part);
    return part;
  };
  const addId = (parent, id) => {
    addPart(parent, "code", id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-5)}` : id).title = id;
  };
  const weightShare = (weight, total) => `${(Number(weight) / Number(total) * 100).toFixed(1)}\u00a0%`;
  const signatureText = ({ state = "not known", signedWeight, requiredWeight, totalWeight }) => {
    const words = state.replaceAll("_", " ");
    return signedWeight && requiredWeight ? `${words}, ${weightShare(signedWeight, totalWeight)} of ${weightShare(requiredWeight, totalWeight)}` : words;
  };
  // Name, color, Unix seconds if they are known, and a text of each step.
  const stepsOf = (message, facts) => {
    const { sourceTransaction: sent, destinationTransaction: received, messageExecuted, receiptDelivered } = message;
    const signature = facts.signature ?? {}, isSigned = received || signature.state === "signed", hasFailed = facts.state === "failed";
    return [
      ["sent", sent ? "ok" : "soft", sent?.timestamp, sent ? "" : "its source is not indexed"],
      ["signed", isSigned ? "ok" : signature.state === "impossible" ? "bad" : "warn", undefined, received ? "" : signatureText(signature)],
      ["received", received ? "ok" : "warn", received?.timestamp, received ? "" : "not yet"],
      ["executed", messageExecuted ? "ok" : hasFailed ? "bad" : "soft", hasFailed ? facts.since : undefined, messageExecuted ? "" : hasFailed ? "failed" : received ? "no" : "not yet"],
      ["receipt", receiptDelivered ? "ok" : "soft", undefined, receiptDelivered ? "" : "not yet"],
    ];
  };
  const showMessage = (life, message) => {
    const facts = message.warpseal ?? {}, card = addPart(life, "div", "", "card"), steps = addPart(card, "ol", "", "steps");
    for (const [name, kind, second, text] of stepsOf(message, facts)) {
      const step = addPart(steps, "li", "", kind);
      addPart(step, "b", `${kind === "ok" ? "✓ " : ""}${name}`);
      if (text) addPart(step, "span", text);
      if (second !== undefined) addPart(step, "time", "").dateTime = new Date(second * 1000).toISOString();
    }
    if (facts.retry) addPart(card, "p", facts.retry.text);
    const { missing = [], totalWeight } = facts.signature ?? {};
    const list = addPart(card, "ul", "");
    for (const { nodeIds, weight, reason, state } of missing) {
      const item = addPart(list, "li", "");
      for (const nodeId of nodeIds) addId(item, nodeId);
      addPart(item, "span", ` ${weightShare(weight, totalWeight)}, ${(state ?? reason).replaceAll("_", " ")}`);
    }
    const route = addPart(card, "p", "", "numbers soft");
    for (const [name, account, chain] of [["from", message.from, message.sourceBlockchainId], ["to", message.to, message.destinationBlockchainId]]) {
      const side = addPart(route, "span", `${name} `);
      addId(side, account);
      side.append(" on ");
      addId(side, chain);
    }
    for (const [name, transaction] of [["sent in", message.sourceTransaction], ["received in", message.destinationTransaction]]) {
      if (transaction) addId(addPart(route, "span", `${name} `), transaction.txHash);
    }
    showTimes(life);
    addCopyButtons(life);
  };
  const lookUp = async (id) => {
    const life = byId("life"), lookup = ++lookups;
    life.replaceChildren();
    if (!id) return;
    addPart(life, "p", "…", "soft");
    const shown = document.createElement("div");
    try {
      const response = await fetch(`/v1/icm/messages/${encodeURIComponent(id)}`), message = await response.json();
      if (response.ok) showMessage(shown, message);
      else addPart(shown, "p", message.message, "bad");
    } catch (error) {
      shown.replaceChildren();
      addPart(shown, "p", `No answer that can be shown: ${error.message}`, "bad");
    }
    // A later search may have been answered before.
    if (lookup === lookups) life.replaceChildren(shown);
  };
  if (byId("icm")) {
    byId("icm").hidden = false;
    byId("message").addEventListener("change", ({ target }) => lookUp(target.value.trim()));
  }
  for (const section of document.querySelectorAll("#state, main > section:not(#validators)")) addCopyButtons(section);
  byId("tools").hidden = false;
  live.hidden = false;
  showTimes(document);
  setInterval(() => showTimes(document), 10000);
  refresh();
  connect();
})();
