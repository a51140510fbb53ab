// Audit events as they arrive. Rows are made from the page's template, and values are set as text, not as HTML.

const MOST_ROWS = 200;
const MOST_NAMES = 1000; // apps whose names are looked up one by one; other apps are shown by id
const MOST_HELD = 200; // newest events kept during a pause
const SAID_EVERY_MS = 5000; // interval of announcements, so that they do not interrupt a screen reader
const AGAIN_AFTER_MS = 5000;
// Characters that change the direction of a line, hide a part or break it. The server escapes the same ones.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;

const place = document.querySelector("[data-live]");
const CLOCK = new Intl.DateTimeFormat("en-GB", {
  timeZone: place?.dataset.zone ?? "UTC", hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
  hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const DAY = new Intl.DateTimeFormat("en-US", { timeZone: place?.dataset.zone ?? "UTC", month: "short", day: "numeric" });
if (place) follow(place);

function follow(place) {
  const table = place.querySelector(".events");
  const body = table.querySelector("tbody");
  const template = place.querySelector("template").content;
  const names = JSON.parse(place.dataset.names);
  const reasons = JSON.parse(place.dataset.reasons);
  const verdicts = place.dataset.verdicts.split(" ");
  const state = document.querySelector("[data-live-state]");
  const said = document.querySelector("[data-live-said]");
  const pause = document.querySelector("[data-pause]");
  const shown = new Set([...body.querySelectorAll(".request a")].map((link) => link.getAttribute("href")));
  let paused = "paused" in place.dataset;
  let held = [];
  let heldCount = 0;
  let arrived = 0;
  let source = null;

  const tell = (kind, words) => {
    state.dataset.state = kind;
    state.querySelector("span").textContent = words;
  };

  function connect() {
    source = new EventSource(place.dataset.tail);
    source.onopen = async () => {
      if (!paused) tell("open", "Live");
      await catchUp();
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        // The server refused the connection, so the browser does not connect again by itself.
        tell("failed", "Not connected");
        setTimeout(connect, AGAIN_AFTER_MS);
      } else if (!paused) {
        tell("waiting", "Reconnecting");
      }
    };
    source.onmessage = (message) => take(JSON.parse(message.data));
    source.addEventListener("gap", () => (said.textContent = "Some events are not shown here. Search for them."));
  }

  // Fetch events that arrived between the page and the connection.
  let caughtUp = false;
  async function catchUp() {
    if (caughtUp || paused) return;
    caughtUp = true;
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const text = await response.text();
    const rows = new DOMParser().parseFromString(text, "text/html").querySelectorAll("[data-live] .events tbody tr");
    for (const row of [...rows].reverse()) {
      const key = row.querySelector(".request a").getAttribute("href");
      if (!shown.has(key)) show(document.importNode(row, true), key);
    }
  }

  function take(event) {
    if (!paused) {
      add(event);
      return;
    }
    held.push(event);
    heldCount += 1;
    if (held.length > MOST_HELD) held.shift();
    tell("paused", `Paused, ${heldCount} new`);
  }

  function add(event) {
    const row = document.importNode(template.querySelector("tr"), true);
    const link = row.querySelector(".request a");
    const org = names[event.orgId] ?? text(event.orgId);
    const base = new URL(place.dataset.link, location.href);
    base.pathname = `/events/${encodeURIComponent(org)}/${encodeURIComponent(text(event.id))}`;
    const key = base.pathname + base.search;
    if (shown.has(key)) return;
    link.setAttribute("href", key);
    const at = row.querySelector(".at");
    at.replaceChildren(time(event.time));
    const verdict = verdicts.indexOf(event.verdict);
    if (verdict >= 0) {
      row.querySelector(".verdict").append(document.importNode(template.querySelectorAll(".badge")[verdict], true));
    }
    row.querySelector(".status").textContent = text(event.status);
    link.querySelector("b").textContent = safe(event.method);
    const path = safe(text(event.path) + (event.query ? `?${event.query}` : "")).slice(0, 400);
    link.querySelector("span").replaceChildren(...segments(path));
    link.title = link.textContent;
    const of = row.querySelector(".app .of");
    if (of) of.textContent = safe(org);
    nameApp(row.querySelector(".app span"), text(event.appId));
    const rule = row.querySelector(".rule");
    rule.textContent = event.ruleId ? `rule ${safe(event.ruleId)}` : "";
    rule.title = rule.textContent;
    if (event.reason) {
      const why = document.createElement("span");
      why.className = "hidden";
      why.textContent = `: ${reasons[event.reason] ?? safe(event.reason)}`;
      row.querySelector(".rule").append(why);
    }
    row.querySelector(".took").textContent = milliseconds(event.durationMs);
    row.classList.add("new");
    show(row, key);
    arrived += 1;
  }

  // The page has only the names of the first apps. Other names are looked up when their first event arrives.
  const unnamed = new Map(); // by app id, the elements that wait for the name
  async function nameApp(place, id) {
    name(place, names[id] ?? id);
    if (!id || id in names) return;
    if (unnamed.has(id)) {
      unnamed.get(id).push(place);
      return;
    }
    if (unnamed.size >= MOST_NAMES) return;
    unnamed.set(id, [place]);
    const response = await fetch(`/admin/v1/apps?limit=1&search=${encodeURIComponent(id)}`);
    const app = response.ok ? (await response.json()).apps[0] : undefined;
    if (app?.appId !== id) return;
    names[id] = app.name;
    for (const each of unnamed.get(id)) name(each, app.name);
  }

  // A narrow column truncates a long name. The title of the cell has the complete name.
  function name(place, app) {
    place.textContent = safe(app);
    const of = place.parentElement.querySelector(".of");
    place.parentElement.title = of ? `${place.textContent} of ${of.textContent}` : place.textContent;
  }

  function show(row, key) {
    shown.add(key);
    body.prepend(row);
    table.hidden = false;
    document.querySelector("[data-live-empty]")?.remove();
    while (body.rows.length > MOST_ROWS) {
      const last = body.rows[body.rows.length - 1];
      shown.delete(last.querySelector(".request a").getAttribute("href"));
      last.remove();
    }
  }

  pause?.addEventListener("click", (click) => {
    click.preventDefault();
    paused = !paused;
    const url = new URL(location.href);
    if (paused) url.searchParams.set("paused", "1");
    else url.searchParams.delete("paused");
    history.replaceState(null, "", url);
    pause.querySelector("span").textContent = paused ? "Resume" : "Pause";
    if (paused) {
      tell("paused", "Paused");
      return;
    }
    for (const event of held) add(event);
    held = [];
    heldCount = 0;
    const isOpen = source.readyState === EventSource.OPEN;
    tell(isOpen ? "open" : "waiting", isOpen ? "Live" : "Reconnecting");
    if (isOpen) catchUp();
  });

  setInterval(() => {
    if (arrived === 0) return;
    said.textContent = `${arrived} new ${arrived === 1 ? "event" : "events"}.`;
    arrived = 0;
  }, SAID_EVERY_MS);
  connect();
}

function text(value) {
  return value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
}

// Marks segments like the server, so that a path breaks at a slash first.
function segments(path) {
  return (path.match(/\/?[^/?]+[/?]?|[/?]/g) ?? []).map((each) => {
    const segment = document.createElement("span");
    segment.className = "segment";
    segment.textContent = each;
    return segment;
  });
}

function safe(value) {
  return text(value).replace(UNSAFE, (found) => `\\u${found.codePointAt(0).toString(16).padStart(4, "0")}`);
}

function milliseconds(value) {
  if (typeof value !== "number") return "";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  return value >= 10 ? `${value.toFixed(0)} ms` : `${value.toFixed(1)} ms`;
}

// Formats a time like the server, in the zone of the page.
function time(value) {
  const moment = new Date(text(value));
  if (Number.isNaN(moment.getTime())) return document.createTextNode(safe(value));
  const element = document.createElement("time");
  element.dateTime = moment.toISOString();
  const parts = Object.fromEntries(CLOCK.formatToParts(moment).map((part) => [part.type, part.value]));
  const clock = `${parts.hour}:${parts.minute}:${parts.second}`;
  const day = `${parts.year}-${parts.month}-${parts.day}`;
  element.title = `${day} ${clock} ${document.querySelector("[data-live]").dataset.zoneName}`;
  const isOfToday = DAY.format(moment) === DAY.format(new Date());
  element.textContent = isOfToday ? clock : `${DAY.format(moment)} ${clock}`;
  return element;
}
