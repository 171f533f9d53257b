"use strict";
// Keeps the page up to date by server-sent events, sorts and filters the validators. The server escapes all it sends.
(() => {
  const byId = (id) => document.getElementById(id);
  const rows = byId("rows"), search = byId("search"), subnet = byId("subnet"), state = byId("state-filter"), live = byId("live");
  let column = -1, isDescending = false, retry = 0;

  const ago = (seconds) => {
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    if (Math.abs(seconds) < 2) return "now";
    const [size, name] = units.find(([unit]) => Math.abs(seconds) >= unit);
    const count = Math.floor(Math.abs(seconds) / size);
    return seconds < 0 ? `in ${count} ${name}` : `${count} ${name} ago`;
  };
  const showTimes = (root) => {
    const now = Date.now();
    for (const time of root.querySelectorAll("time")) {
      const text = ago((now - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
      time.title = time.dateTime;
    }
  };
  // A browser lays out more rows too slowly.
  const MAX_SHOWN = 500;
  const matches = (row) =>
    (!subnet.value || row.dataset.subnet === subnet.value) &&
    (!state.value || (state.value === "missing") === (row.dataset.state !== "connected")) &&
    (!search.value || row.textContent.toLowerCase().includes(search.value.trim().toLowerCase()));
  const filter = () => {
    let count = 0;
    for (const row of rows.rows) {
      const isMatch = matches(row);
      row.hidden = !isMatch || count >= MAX_SHOWN;
      count += isMatch;
    }
    const note = count > MAX_SHOWN ? `, the first ${MAX_SHOWN} are shown` : "";
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
  const sort = () => {
    if (column < 0) return;
    const sorted = [...rows.rows].map((row) => ({ row, value: valueOf(row) })).sort(compare);
    if (sorted.some(({ row }, place) => rows.rows[place] !== row)) rows.append(...sorted.map(({ row }) => row));
  };
  const listSubnets = () => {
    const ids = [...document.querySelectorAll("#subnets [data-subnet]")].map((card) => card.dataset.subnet);
    if (ids.join() === [...subnet.options].slice(1).map((option) => option.value).join()) return;
    const chosen = subnet.value;
    subnet.length = 1;
    for (const id of ids) subnet.add(new Option(`${id.slice(0, 8)}…${id.slice(-5)}`, id));
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
  for (const control of [search, subnet, state]) control.addEventListener("input", filter);
  byId("tools").hidden = false;
  live.hidden = false;
  showTimes(document);
  setInterval(() => showTimes(document), 10000);
  refresh();
  connect();
})();
