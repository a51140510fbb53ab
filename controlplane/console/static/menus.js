// Menus made of <details>: Escape and a click elsewhere close them, and only one is open.

export function setUpMenus(root) {
  const menus = [...root.querySelectorAll("details[data-menu]")];
  const closeAllBut = (kept) => menus.filter((menu) => menu !== kept).forEach((menu) => (menu.open = false));
  root.addEventListener("click", (event) => closeAllBut(menus.find((menu) => menu.contains(event.target))));
  root.addEventListener("keydown", (event) => {
    const menu = menus.find((each) => each.open);
    if (event.key !== "Escape" || !menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
