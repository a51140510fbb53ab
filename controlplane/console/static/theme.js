// Switches between light and dark at once, and stores the choice in the cookie that the server reads.

const YEAR_S = 31536000;

export function setUpTheme(root) {
  for (const button of root.querySelectorAll("[data-theme-toggle]")) {
    button.addEventListener("click", (event) => {
      event.preventDefault();
      const page = root.documentElement;
      const shown = page.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
      page.dataset.theme = shown === "dark" ? "light" : "dark";
      const secure = location.protocol === "https:" ? "; Secure" : "";
      root.cookie = `graphward-theme=${page.dataset.theme}; Max-Age=${YEAR_S}; Path=/; SameSite=Strict${secure}`;
    });
  }
}
