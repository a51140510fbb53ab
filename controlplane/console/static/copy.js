// Buttons that copy the text next to them.

const SAID_FOR_MS = 1600;

export function setUpCopying(root) {
  for (const button of root.querySelectorAll("button[data-copy]")) {
    // Without a clipboard (plain HTTP on another host), the text can still be selected.
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
}

async function copy(button) {
  const label = button.getAttribute("aria-label");
  await navigator.clipboard.writeText(button.previousElementSibling.textContent);
  button.classList.add("done");
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.classList.remove("done");
    button.setAttribute("aria-label", label);
  }, SAID_FOR_MS);
}
