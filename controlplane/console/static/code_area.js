// A text area for code: line numbers, colours, Tab and Enter. The text stays in a plain text area.

const INDENT = "  ";
const MOST_COLOURED = 2000; // characters of a line, as on the page that shows a ruleset
const TOKEN = /(?<comment>(?<!\S)#.*)|(?<string>(?<![^\s[{,])(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'))|(?<key>(?<![\w.$-])[A-Za-z_][\w.$-]*(?=:(?:\s|$)))/g;

export function setUpCode(area, marks) {
  for (const layer of layers(area)) layer.hidden = false;
  area.classList.add("painted");
  const redraw = () => draw(area, marks());
  area.addEventListener("scroll", redraw);
  area.addEventListener("input", redraw);
  new ResizeObserver(redraw).observe(area);
  let leaving = false;
  area.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if (event.key === "Tab" && !leaving && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      indent(area, event.shiftKey);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const line = area.value.slice(lineStart(area.value, area.selectionStart), area.selectionStart);
      type("\n" + line.match(/^ *(?:- (?=[^\s:]+:(?:\s|$)))?/)[0].replace("-", " ")); // below the item's first key
    }
    // Escape, then Tab, moves to the next field, so that keyboard users can leave.
    leaving = event.key === "Escape" || (leaving && event.key === "Shift");
  });
  area.addEventListener("blur", () => (leaving = false));
}

const layers = (area) => ["gutter", "paint"].map((name) => area.parentElement.querySelector(`.${name}`));

// Only visible lines are drawn, so that a long text costs no more time than a short one.
export function draw(area, marked) {
  const [gutter, paint] = layers(area);
  const style = getComputedStyle(area);
  const height = parseFloat(style.lineHeight);
  const lines = area.value.split("\n");
  const first = Math.floor(area.scrollTop / height);
  const shown = lines.slice(first, first + Math.ceil(area.clientHeight / height) + 1);
  const top = parseFloat(style.paddingTop) + first * height - area.scrollTop;
  layer(gutter, shown.map((_, at) => numberOf(first + at + 1, marked)), `translateY(${top}px)`);
  const left = parseFloat(style.paddingLeft) - area.scrollLeft;
  layer(paint, shown.map(coloured), `translate(${left}px, ${top}px)`);
}

function layer(holder, children, transform) {
  const inner = document.createElement("div");
  inner.append(...children);
  inner.style.transform = transform;
  holder.replaceChildren(inner);
}

function numberOf(line, marked) {
  const number = document.createElement("span");
  number.textContent = line;
  number.className = marked.get(line) ?? "";
  return number;
}

function coloured(text) {
  const line = document.createElement("span");
  let end = 0;
  for (const token of text.length > MOST_COLOURED ? [] : text.matchAll(TOKEN)) {
    const part = document.createElement("span");
    part.className = `y-${Object.keys(token.groups).find((name) => token.groups[name] !== undefined)}`;
    part.textContent = token[0];
    line.append(text.slice(end, token.index), part);
    end = token.index + token[0].length;
  }
  line.append(text.slice(end));
  return line;
}

export const lineStart = (text, at) => text.lastIndexOf("\n", at - 1) + 1;

// The browser's own undo can revert text that is inserted in this way.
export function type(text) {
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
