// Fetches the list of proxies with a stop again, until every proxy has confirmed it.

const AGAIN_AFTER_MS = 3000;
const reach = document.querySelector("#reach[data-waiting]");
if (reach) setTimeout(refresh, AGAIN_AFTER_MS, reach);

async function refresh(shown) {
  let fresh = null;
  try {
    const response = await fetch(location.href);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    fresh = response.ok ? page.querySelector("#reach") : null;
  } catch {} // the next attempt may succeed
  if (fresh) shown.replaceWith(fresh);
  const current = fresh ?? shown;
  if (current.matches("[data-waiting]")) setTimeout(refresh, AGAIN_AFTER_MS, current);
}
