// The button that shows times in the browser's zone, whose name only the browser can provide.

export function setUpZone(root) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const button of root.querySelectorAll("[data-local-zone]")) {
    if (!zone || zone === button.dataset.localZone) continue;
    button.name = "zone";
    button.value = zone;
    button.textContent = `Show local time (${zone})`;
    button.hidden = false;
  }
}
