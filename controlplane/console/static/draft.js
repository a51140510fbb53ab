// The editor of a draft: checks the text during typing, and keeps a copy of the form in this browser.
// Without this script the same form works by its buttons.
import { draw, setUpCode } from "./code_area.js";
import { setUpCompletion } from "./completion.js";

const CHECK_AFTER_MS = 400;
const KEEP_AFTER_MS = 200;
const underWay = new Map(); // newest request of each kind; responses to older requests are dropped
const KEPT = ["yaml", "cases", "base", "into"];

const form = document.querySelector("form.editor");
setUpCompletion(form.yaml, form); // before the text area's own keys, because an open list takes Tab and Escape
for (const area of form.querySelectorAll("textarea[data-code]")) setUpCode(area, () => marks(area));
for (const hint of form.querySelectorAll("[data-with-script]")) hint.hidden = false;
setUpPlaces();
setUpKeeping();
setUpTrying();
setUpDropping();

// Dropping a HAR file into its field

function setUpDropping() {
  const zone = form.querySelector("[data-drop]");
  const mark = (event) => {
    event.preventDefault();
    zone.classList.toggle("over", event.type === "dragover");
  };
  for (const name of ["dragover", "dragleave", "drop"]) zone.addEventListener(name, mark);
  zone.addEventListener("drop", (event) => (form.elements.har.files = event.dataTransfer.files));
}

// Positions in the text

function marks(area) {
  const found = new Map();
  for (const link of form.querySelectorAll(`.findings a[href="#${area.id}"]`)) {
    const kind = link.closest(".findings").classList.contains("bad") ? "bad" : "warn";
    if (found.get(Number(link.dataset.line)) !== "bad") found.set(Number(link.dataset.line), kind);
  }
  return found;
}

function setUpPlaces() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.place");
    if (!link) return;
    event.preventDefault();
    goTo(document.querySelector(link.hash), Number(link.dataset.line), Number(link.dataset.column));
  });
}

function goTo(area, line, column) {
  const lines = area.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  const end = at + (lines[line - 1]?.length ?? 0);
  area.focus();
  area.setSelectionRange(Math.min(at + column - 1, end), end);
  const height = parseFloat(getComputedStyle(area).lineHeight);
  area.scrollTop = Math.max(0, (line - 1) * height - area.clientHeight / 3);
  area.scrollLeft = 0;
}

// The browser stores the draft under the page's path, until its text is active or the operator discards it.

function setUpKeeping() {
  const key = `graphward-draft:${form.dataset.path}`;
  const shown = { yaml: form.yaml.value, base: form.base.value };
  const kept = read(key);
  if (form.dataset.fresh === "yes" && kept && kept.yaml !== shown.yaml) {
    for (const name of KEPT) if (name in kept && form.elements[name]) form.elements[name].value = kept[name];
    const notice = form.querySelector("[data-restored]");
    const when = new Date(kept.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    notice.querySelector("span").textContent = `This browser kept your draft of ${when}.`;
    notice.hidden = false;
    const version = form.querySelector("[data-base]");
    if (version && kept.base) version.textContent = `draft of version ${kept.base}`;
    notice.querySelector("[data-discard]").addEventListener("click", () => {
      form.yaml.value = shown.yaml;
      form.base.value = shown.base;
      if (version) version.textContent = `draft of version ${shown.base}`;
      localStorage.removeItem(key);
      notice.hidden = true;
      form.yaml.dispatchEvent(new Event("input", { bubbles: true }));
    });
  } else if (form.dataset.fresh === "yes" && kept) {
    form.cases.value = kept.cases ?? "";
    if (!kept.cases) localStorage.removeItem(key); // published by other means
  }
  const keep = () => {
    if (form.yaml.value === shown.yaml && form.dataset.fresh === "yes" && !form.cases.value) {
      localStorage.removeItem(key); // typed back
      return;
    }
    const now = Object.fromEntries(KEPT.map((name) => [name, form.elements[name]?.value]));
    try {
      localStorage.setItem(key, JSON.stringify({ ...now, at: Date.now() }));
    } catch {
      // The storage is full or not allowed. The form itself still contains everything.
    }
  };
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(keep, KEEP_AFTER_MS);
  });
  form.addEventListener("submit", keep);
  addEventListener("pagehide", () => timer && keep());
  // After publishing, the next page runs published.js, which removes this draft.
  form.addEventListener("submit", (event) => {
    if (event.submitter?.value === "publish") sessionStorage.setItem("graphward-publishing", key);
  });
  if (form.dataset.fresh === "no") keep();
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

// Actions that do not leave the page

function setUpTrying() {
  let timer = 0;
  const check = () => tryOut("check");
  form.yaml.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, CHECK_AFTER_MS);
  });
  form.addEventListener("submit", (event) => {
    if (!event.submitter?.hasAttribute("data-in-place")) return;
    event.preventDefault();
    clearTimeout(timer);
    tryOut(event.submitter.value, event.submitter);
  });
  // Enter in a panel's field presses the panel's button, not the form's first.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    const button = event.target.closest(".body")?.querySelector("button[name=do]");
    if (button) {
      event.preventDefault();
      form.requestSubmit(button);
    }
  });
  if (!form.querySelector("#checked").childElementCount) check();
  // A link can contain a request to explain.
  if (form.elements.target.value && !form.querySelector("#explained").childElementCount) tryOut("explain");
  if (form.dataset.ruleLine) goTo(form.yaml, Number(form.dataset.ruleLine), 1);
}

async function tryOut(what, button, isSecondTry = false) {
  underWay.get(what)?.abort();
  const controller = new AbortController();
  underWay.set(what, controller);
  button?.setAttribute("aria-busy", "true");
  try {
    const fields = new FormData(form);
    fields.delete("har"); // only the buttons of the file send it
    const body = new URLSearchParams(fields);
    body.set("do", what);
    body.set("live", "yes");
    const response = await fetch(form.action, { method: "POST", body, signal: controller.signal });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const parts = [...page.body.children].filter((each) => each.id && document.getElementById(each.id));
    const isRefused = response.redirected || response.status === 403;
    if (isRefused && !isSecondTry && (await freshToken())) return tryOut(what, button, true);
    if (isRefused || !parts.length) return trouble(response);
    for (const part of parts) document.getElementById(part.id).replaceChildren(...part.childNodes);
    trouble(null);
    goOn(what);
    for (const area of form.querySelectorAll("textarea[data-code]")) draw(area, marks(area));
  } catch (error) {
    if (error.name !== "AbortError") trouble({});
  } finally {
    if (underWay.get(what) === controller) button?.removeAttribute("aria-busy");
  }
}

// A replay runs in steps. Each response contains the button for the next step.
function goOn(what) {
  const next = form.querySelector("#replayed [data-go-on]");
  if (!next || !what.startsWith("replay")) return;
  const stop = next.nextElementSibling;
  next.hidden = true;
  stop.hidden = false;
  const timer = setTimeout(() => tryOut("replay-on"));
  stop.addEventListener("click", () => {
    clearTimeout(timer);
    underWay.get("replay-on")?.abort();
    next.hidden = false;
    stop.hidden = true;
  });
}

function trouble(response) {
  const notice = form.querySelector("[data-trouble]");
  notice.hidden = response === null;
  if (response === null) return;
  const signedOut = response.redirected || response.status === 403;
  notice.querySelector("span").textContent = signedOut
    ? "You are signed out. This browser keeps your text: sign in again in another tab, then continue here."
    : "The control plane does not respond. This browser keeps your text.";
}

// Returns true if another tab signed in again. Then the form token of this page is not valid any more.
async function freshToken() {
  const response = await fetch(form.dataset.path + location.search);
  if (response.redirected || !response.ok) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const token = page.querySelector("form.editor input[name=csrf]")?.value;
  for (const field of document.querySelectorAll("input[name=csrf]")) field.value = token;
  return true;
}
