// What a page was too quick to wait for: counts that are put in once they are there.

for (const place of document.querySelectorAll("[data-counts]")) fill(place);

async function fill(place) {
  try {
    const answer = await fetch(place.dataset.counts, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
    const text = await answer.text();
    place.replaceWith(...new DOMParser().parseFromString(text, "text/html").body.children);
  } catch {
    place.removeAttribute("aria-busy"); // the link beside it still leads to them
  }
}
