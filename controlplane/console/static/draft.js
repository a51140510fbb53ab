// The editor of a draft: line numbers, Tab, checks while one types, a copy of the form kept in this browser.
// Without this script the same form works by its buttons.

const CHECK_AFTER_MS = 400;
const KEEP_AFTER_MS = 200;
const INDENT = "  ";
const underWay = new Map(); // the newest of each kind; an older one that comes late is not shown
const KEPT = ["yaml", "cases", "base", "into"];

const form = document.querySelector("form.editor");
for (const area of form.querySelectorAll("textarea[data-code]")) setUpCode(area);
for (const hint of form.querySelectorAll("[data-with-script]")) hint.hidden = false;
setUpPlaces();
setUpKeeping();
setUpTrying();

// The text

function setUpCode(area) {
  const gutter = area.previousElementSibling;
  gutter.hidden = false;
  const draw = () => drawNumbers(area, gutter);
  area.addEventListener("scroll", draw);
  area.addEventListener("input", draw);
  new ResizeObserver(draw).observe(area);
  let leaving = false;
  area.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Tab" && !leaving && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      indent(area, event.shiftKey);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const line = area.value.slice(lineStart(area.value, area.selectionStart), area.selectionStart);
      type("\n" + line.match(/^ *(?:- (?=[^\s:]+:(?:\s|$)))?/)[0].replace("-", " ")); // below the item's first key
    }
    // Escape, then Tab, goes on to the next field: nobody is caught in here.
    leaving = event.key === "Escape" || (leaving && event.key === "Shift");
  });
  area.addEventListener("blur", () => (leaving = false));
}

// Only the numbers in view are there, so that a long text costs no more than a short one.
function drawNumbers(area, gutter) {
  const style = getComputedStyle(area);
  const height = parseFloat(style.lineHeight);
  const count = area.value.split("\n").length;
  const first = Math.floor(area.scrollTop / height);
  const last = Math.min(count, first + Math.ceil(area.clientHeight / height) + 1);
  const marked = marks(area);
  gutter.replaceChildren(
    ...Array.from({ length: Math.max(0, last - first) }, (_, at) => {
      const number = document.createElement("span");
      number.textContent = first + at + 1;
      number.className = marked.get(first + at + 1) ?? "";
      return number;
    }),
  );
  gutter.style.paddingTop = `${parseFloat(style.paddingTop) + first * height - area.scrollTop}px`;
}

function marks(area) {
  const found = new Map();
  for (const link of form.querySelectorAll(`.findings a[href="#${area.id}"]`)) {
    const kind = link.closest(".findings").classList.contains("bad") ? "bad" : "warn";
    if (found.get(Number(link.dataset.line)) !== "bad") found.set(Number(link.dataset.line), kind);
  }
  return found;
}

const lineStart = (text, at) => text.lastIndexOf("\n", at - 1) + 1;

// What goes in this way can be undone with the browser's own undo.
function type(text) {
  document.execCommand("insertText", false, text);
}

function indent(area, outwards) {
  const { value, selectionStart, selectionEnd } = area;
  if (!outwards && selectionStart === selectionEnd) return type(INDENT);
  const from = lineStart(value, selectionStart);
  const lines = value.slice(from, selectionEnd).split("\n");
  const changed = lines.map((line) => (outwards ? line.replace(/^ {1,2}/, "") : line && INDENT + line));
  area.setSelectionRange(from, selectionEnd);
  type(changed.join("\n"));
  const moved = changed[0].length - lines[0].length;
  area.setSelectionRange(Math.max(from, selectionStart + moved), from + changed.join("\n").length);
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

// What is kept: under the page's own path, until the text is the one in force or somebody discards it.

function setUpKeeping() {
  const key = `graphward-draft:${form.dataset.path}`;
  const shown = { yaml: form.yaml.value, base: form.base.value };
  const kept = read(key);
  if (form.dataset.fresh === "yes" && kept && kept.yaml !== shown.yaml) {
    for (const name of KEPT) if (name in kept && form.elements[name]) form.elements[name].value = kept[name];
    const notice = form.querySelector("[data-restored]");
    const when = new Date(kept.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    notice.querySelector("span").textContent = `This is your draft of ${when}, as this browser kept it.`;
    notice.hidden = false;
    const version = form.querySelector("[data-base]");
    if (version && kept.base) version.textContent = `a draft of version ${kept.base}`;
    notice.querySelector("[data-discard]").addEventListener("click", () => {
      form.yaml.value = shown.yaml;
      form.base.value = shown.base;
      if (version) version.textContent = `a draft of version ${shown.base}`;
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
      // No room, or none allowed: the form itself still has everything.
    }
  };
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(keep, KEEP_AFTER_MS);
  });
  form.addEventListener("submit", keep);
  addEventListener("pagehide", () => timer && keep());
  // The page that a publication leads to has published.js, which forgets this draft.
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

// What is tried without leaving the page

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
  // A link may bring a request to explain.
  if (form.elements.target.value && form.dataset.fresh === "yes") tryOut("explain");
}

async function tryOut(what, button, isSecondTry = false) {
  underWay.get(what)?.abort();
  const controller = new AbortController();
  underWay.set(what, controller);
  button?.setAttribute("aria-busy", "true");
  try {
    const body = new URLSearchParams(new FormData(form));
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
    for (const area of form.querySelectorAll("textarea[data-code]")) drawNumbers(area, area.previousElementSibling);
  } catch (error) {
    if (error.name !== "AbortError") trouble({});
  } finally {
    if (underWay.get(what) === controller) button?.removeAttribute("aria-busy");
  }
}

// A replay comes in steps: each response holds the button for the next one.
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
    ? "You are signed out. Your text is kept here: sign in again in another tab, and go on."
    : "The control plane doesn't respond to now. Your text is kept here.";
}

// Another sign-in, in another tab, has another form token: this page's own is of no use to it. Whether there is one.
async function freshToken() {
  const response = await fetch(form.dataset.path + location.search);
  if (response.redirected || !response.ok) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const token = page.querySelector("form.editor input[name=csrf]")?.value;
  for (const field of document.querySelectorAll("input[name=csrf]")) field.value = token;
  return true;
}
