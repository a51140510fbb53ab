// Inserts counts that the server omitted from the page because they took too long.

import { setUpCharts } from "./charts.js";

for (const place of document.querySelectorAll("[data-counts]")) fill(place);

async function fill(place) {
  try {
    const response = await fetch(place.dataset.counts, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) throw new Error(response.statusText);
    const text = await response.text();
    const counts = [...new DOMParser().parseFromString(text, "text/html").body.children];
    place.replaceWith(...counts);
    for (const part of counts) setUpCharts(part);
  } catch {
    place.removeAttribute("aria-busy"); // the link next to it still leads to the counts
  }
}
