// Shows a tooltip and a line at the same moment in every chart of the page. The tooltip has the titles of the chart.
// A pointer moves the line. If the chart has the focus, the arrow keys move it: the chart is a slider.

const SVG = "http://www.w3.org/2000/svg";
const TIP_WIDTH = 220;
const charts = new Set();

export function setUpCharts(root) {
  for (const over of root.querySelectorAll("[data-chart]")) charts.add(new Chart(over));
}

class Chart {
  constructor(over) {
    this.start = Number(over.dataset.start);
    this.end = Number(over.dataset.end);
    this.marks = [...over.querySelectorAll("[data-at]")].map((mark) => ({
      at: Number(mark.dataset.at),
      words: takeTitle(mark),
    }));
    this.places = [...over.querySelectorAll("[data-from]")].map((place) => {
      const [when, ...what] = takeTitle(place).split("\n");
      const from = Number(place.dataset.from);
      const until = Number(place.dataset.until);
      const marks = this.marks.filter((mark) => from <= mark.at && mark.at < until);
      return { from, until, when, what, marks: marks.map((mark) => mark.words) };
    });
    this.line = make("line", { class: "crosshair", y1: "0", y2: "100%" });
    this.tip = make("foreignObject", { class: "tip-place", y: "0", width: TIP_WIDTH, height: "1" });
    this.box = document.createElement("div");
    this.box.className = "tip";
    this.tip.append(this.box);
    over.append(this.line, this.tip);
    this.slider = this.makeSlider(over);
    this.hide();
    over.addEventListener("pointermove", (event) => {
      const box = over.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      showEverywhere(this.start + share * (this.end - this.start));
    });
    over.addEventListener("pointerleave", hideEverywhere);
  }

  makeSlider(over) {
    const slider = document.createElement("div");
    const drawing = over.parentElement.querySelector("[role=img]");
    const most = String(Math.max(this.places.length - 1, 0));
    const named = { role: "slider", tabindex: "0", "aria-valuemin": "0", "aria-valuemax": most };
    for (const [key, value] of Object.entries(named)) slider.setAttribute(key, value);
    slider.className = "moment";
    slider.setAttribute("aria-label", `Moment. ${drawing.getAttribute("aria-label")}`);
    this.at = this.places.length - 1;
    slider.addEventListener("focus", () => this.go(this.at));
    slider.addEventListener("blur", hideEverywhere);
    slider.addEventListener("keydown", (event) => {
      const last = this.places.length - 1;
      const target = {
        ArrowLeft: this.at - 1,
        ArrowDown: this.at - 1,
        ArrowRight: this.at + 1,
        ArrowUp: this.at + 1,
        PageDown: this.at - 10,
        PageUp: this.at + 10,
        Home: 0,
        End: last,
      }[event.key];
      if (target === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.go(Math.min(Math.max(target, 0), last));
    });
    over.after(slider);
    return slider;
  }

  go(at) {
    const place = this.places[at];
    if (!place) return;
    this.at = at;
    showEverywhere((place.from + place.until) / 2);
  }

  show(time) {
    const at = this.places.findIndex((each) => each.from <= time && time < each.until);
    if (at < 0) return this.hide();
    const place = this.places[at];
    this.say(at);
    const share = ((place.from + place.until) / 2 - this.start) / (this.end - this.start);
    const x = `${(share * 100).toFixed(2)}%`;
    for (const name of ["x1", "x2"]) this.line.setAttribute(name, x);
    this.tip.setAttribute("x", x);
    const isRight = share > 0.5;
    this.tip.setAttribute("transform", `translate(${isRight ? -TIP_WIDTH - 8 : 8} 6)`);
    this.box.classList.toggle("right", isRight);
    const lines = [lineOf("b", place.when), ...place.what.map((words) => lineOf("span", words))];
    this.box.replaceChildren(...lines, ...place.marks.map((words) => lineOf("i", words)));
    this.line.removeAttribute("visibility");
    this.tip.removeAttribute("visibility");
  }

  say(at) {
    const place = this.places[at];
    this.slider.setAttribute("aria-valuenow", String(Math.max(at, 0)));
    const words = place ? [place.when, ...place.what, ...place.marks] : ["no interval"];
    this.slider.setAttribute("aria-valuetext", words.join(", "));
  }

  hide() {
    this.say(this.at);
    this.line.setAttribute("visibility", "hidden");
    this.tip.setAttribute("visibility", "hidden");
  }
}

function showEverywhere(time) {
  for (const chart of charts) chart.show(time);
}

function hideEverywhere() {
  for (const chart of charts) chart.hide();
}

// The browser's own tooltip would cover this one.
function takeTitle(place) {
  const title = place.querySelector("title");
  title.remove();
  place.closest("a")?.setAttribute("aria-label", title.textContent);
  return title.textContent;
}

function lineOf(kind, words) {
  const line = document.createElement(kind);
  line.textContent = words;
  return line;
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideEverywhere();
});
setUpCharts(document);
