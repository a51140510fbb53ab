// Completion in a text area: a listbox below the cursor, used with the arrow keys, Tab and Escape.
import { lineStart, type } from "./code_area.js";

const ASK_AFTER_MS = 120;

export function setUpCompletion(area, form) {
  const list = document.getElementById("completions");
  let timer = 0;
  let asking = null;
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  area.addEventListener("input", (event) => {
    close();
    clearTimeout(timer);
    const caret = area.selectionStart;
    const askHere = () => area.selectionStart === caret && ask();
    if (isTyped(event)) timer = setTimeout(askHere, ASK_AFTER_MS);
  });
  area.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.key === " ") {
      event.preventDefault();
      ask();
    } else if (!list.hidden) use(event);
  });
  for (const name of ["blur", "pointerdown"]) area.addEventListener(name, close);
  area.addEventListener("scroll", () => list.hidden || close());
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the text keeps the focus
    if (event.target.role === "option") insert(event.target);
  });

  // An open list takes the Tab key. It opens by itself only after a character, and never in an empty line.
  function isTyped(event) {
    if (event.inputType !== "insertText" || !/^[\w$./:[,\- ]$/.test(event.data ?? "")) return false;
    return area.value.slice(lineStart(area.value, area.selectionStart), area.selectionStart).trim() !== "";
  }

  function use(event) {
    const chosen = list.querySelector("[aria-selected=true]");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(chosen, event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Escape") {
      event.preventDefault();
      close();
    } else if ((event.key === "Tab" && !event.shiftKey) || (event.key === "Enter" && chosen)) {
      event.preventDefault();
      insert(chosen ?? list.firstElementChild);
    } else if (["ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown"].includes(event.key)) close();
  }

  function move(chosen, step) {
    const options = [...list.children];
    const at = chosen ? options.indexOf(chosen) + step : step > 0 ? 0 : options.length - 1;
    const next = options[(at + options.length) % options.length];
    chosen?.setAttribute("aria-selected", "false");
    next.setAttribute("aria-selected", "true");
    next.scrollIntoView({ block: "nearest" });
    area.setAttribute("aria-activedescendant", next.id);
  }

  function insert(option) {
    const at = area.selectionStart;
    close();
    area.setSelectionRange(at - list.dataset.typed.length, at);
    type(option.textContent);
  }

  function close() {
    asking?.abort();
    list.hidden = true;
    area.removeAttribute("aria-activedescendant");
  }

  async function ask() {
    if (area.selectionStart !== area.selectionEnd) return;
    asking?.abort();
    asking = new AbortController();
    const asked = asking;
    const [text, caret] = [area.value, area.selectionStart];
    const body = new URLSearchParams({ yaml: text, caret, do: "complete", live: "yes" });
    for (const name of ["csrf", "into", "base"]) if (form.elements[name]) body.set(name, form.elements[name].value);
    try {
      const response = await fetch(form.action, { method: "POST", body, signal: asked.signal });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const found = page.getElementById("completions");
      const isCurrent = asking === asked && area.value === text && area.selectionStart === caret;
      if (found?.childElementCount && isCurrent && document.activeElement === area) open(found);
    } catch {
      // A failed request needs no message, because the next key sends another one.
    }
  }

  function open(found) {
    list.replaceChildren(...found.children);
    list.dataset.typed = found.dataset.typed;
    list.setAttribute("aria-label", found.getAttribute("aria-label"));
    list.hidden = false;
    place();
  }

  // Below the cursor, or above it if there is no room.
  function place() {
    const style = getComputedStyle(area);
    const height = parseFloat(style.lineHeight);
    const before = area.value.slice(0, area.selectionStart);
    const column = before.length - lineStart(area.value, area.selectionStart) - list.dataset.typed.length;
    const top = area.offsetTop + parseFloat(style.paddingTop) + before.split("\n").length * height - area.scrollTop;
    const left = area.offsetLeft + parseFloat(style.paddingLeft) + column * widthOfCharacter(style) - area.scrollLeft;
    const isAbove = top + list.offsetHeight > area.offsetTop + area.clientHeight && top - height > list.offsetHeight;
    list.style.top = `${isAbove ? top - height - list.offsetHeight : top}px`;
    list.style.left = `${Math.max(0, Math.min(left, area.offsetLeft + area.clientWidth - list.offsetWidth))}px`;
  }
}

function widthOfCharacter(style) {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = style.font;
  return canvas.measureText("m").width;
}
