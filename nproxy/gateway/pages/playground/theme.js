// Light, dark, or the system's theme. This is no module, so that it runs before the first paint.

(() => {
  const NAME = "nproxy.theme";
  const ORDER = ["system", "light", "dark"];
  const page = document.documentElement;

  const known = () => {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is not allowed
    }
  };

  const show = (theme) => {
    page.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button !== null) button.textContent = `Theme: ${theme}`;
  };

  const change = () => {
    const theme = ORDER[(ORDER.indexOf(page.dataset.theme) + 1) % ORDER.length];
    show(theme);
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      // the theme lasts until the page is left
    }
  };

  show(ORDER.includes(known()) ? known() : "system");
  document.addEventListener("DOMContentLoaded", () => {
    show(page.dataset.theme);
    document.getElementById("theme").addEventListener("click", change);
  });
})();
