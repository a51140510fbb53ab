// looks.py runs this function in a page. It returns the faults that make the page hard to use.
(withContrasts = true) => {
  const found = [];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const named = (element) =>
    (element.getAttribute("aria-label") || element.textContent || element.getAttribute("title") || "").trim() ||
    (element.labels && [...element.labels].some((label) => label.textContent.trim())) ||
    document.getElementById(element.getAttribute("aria-labelledby"))?.textContent.trim();
  const told = (element) => element.outerHTML.slice(0, 120);

  if (document.documentElement.scrollWidth > innerWidth) {
    const widest = [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1);
    found.push(`wider than the window by ${document.documentElement.scrollWidth - innerWidth}: ${widest.slice(0, 1).map(told)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) found.push("a page has one h1");
  let before = 0;
  for (const heading of document.querySelectorAll("main :is(h1, h2, h3, h4)")) {
    const level = Number(heading.tagName[1]);
    if (level > before + 1) found.push(`heading leaps from ${before} to ${level}: ${told(heading)}`);
    before = level;
  }
  for (const element of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")) {
    if (shown(element) && !named(element)) found.push(`has no name: ${told(element)}`);
  }
  for (const element of document.querySelectorAll("img:not([alt]), svg[role=img]:not([aria-label])")) {
    found.push(`has no text: ${told(element)}`);
  }
  // Styles that scripts set through the object model are not inline styles, but have the same attribute.
  for (const element of document.querySelectorAll("script:not([src]), style, [onclick]")) {
    found.push(`inline: ${told(element)}`);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption && !table.closest("[aria-label]")) found.push(`a table without a caption: ${told(table)}`);
  }
  for (const element of document.querySelectorAll("body *")) {
    const { overflowX, fontSize } = getComputedStyle(element);
    const hasText = [...element.childNodes].some((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
    if (hasText && parseFloat(fontSize) < 12 && shown(element)) found.push(`smaller than 12 px: ${told(element)}`);
    const isCut = (overflowX === "hidden" || overflowX === "clip") && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 4);
    if (!isCut || !shown(element) || !element.textContent.trim()) continue;
    if (!element.closest(".hidden, svg, select, [title], [aria-hidden=true]") && element.clientWidth > 1) {
      found.push(`text is cut, and nothing has it whole: ${told(element)}`);
    }
  }
  for (const region of document.querySelectorAll(".table:has(.cards)")) {
    if (region.scrollWidth > region.clientWidth + 1) {
      found.push(`a table is wider than its place by ${region.scrollWidth - region.clientWidth}: ${region.getAttribute("aria-label")}`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const twice = ids.filter((id, index) => ids.indexOf(id) !== index);
  if (twice.length) found.push(`ids that are not unique: ${twice}`);
  for (const label of document.querySelectorAll("label[for]")) {
    if (!document.getElementById(label.htmlFor)) found.push(`a label of nothing: ${told(label)}`);
  }
  if (!document.documentElement.lang) found.push("no language");
  return withContrasts ? [...found, ...contrasts()] : found;

  // WCAG 2.2, 1.4.3: 4.5 to 1, and 3 to 1 for large text.
  function contrasts() {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.canvas.width = canvas.canvas.height = 1;
    const seen = new Map();
    const rgba = (colour) => {
      if (!seen.has(colour)) {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        seen.set(colour, [r, g, b, a / 255]);
      }
      return seen.get(colour);
    };
    const over = (top, under) => top.slice(0, 3).map((value, at) => value * top[3] + under[at] * (1 - top[3]));
    const behind = (element) => {
      if (!element) return [255, 255, 255];
      const colour = rgba(getComputedStyle(element).backgroundColor);
      return colour[3] === 1 ? colour.slice(0, 3) : over(colour, behind(element.parentElement));
    };
    const luminance = (colour) => {
      const [r, g, b] = colour.map((value) => value / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const low = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !shown(element) || element.closest(".hidden, option, :disabled, [aria-hidden=true]")) continue;
      const style = getComputedStyle(element);
      const under = behind(element);
      const [bright, dim] = [luminance(over(rgba(style.color), under)), luminance(under)].sort((a, b) => b - a);
      const ratio = (bright + 0.05) / (dim + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5)) low.add(`contrast ${ratio.toFixed(2)}: ${told(element)}`);
    }
    return [...low].slice(0, 5);
  }
}
