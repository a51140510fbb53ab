// Keys of the whole console: "/" searches, "?" lists the keys, "g" and a letter opens a page.

const SECOND_KEY_WITHIN_MS = 1200;

export function setUpKeys(root) {
  let wentAt = -Infinity;
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const follows = event.timeStamp - wentAt < SECOND_KEY_WITHIN_MS;
    wentAt = -Infinity;
    if (follows) {
      const entry = root.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (entry) entry.click();
    } else if (event.key === "g") {
      wentAt = event.timeStamp;
    } else if (event.key === "/") {
      event.preventDefault();
      // A page may have a better field than the one in the frame.
      (root.querySelector("main [data-find]") ?? root.querySelector("[data-find]"))?.focus();
    } else if (event.key === "?") {
      root.getElementById("keys")?.showModal();
    }
  });
}

function isTyping(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}
