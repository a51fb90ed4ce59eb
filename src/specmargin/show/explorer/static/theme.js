// Light or dark: the system's setting unless the reader chose. A classic script, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const apply = () => {
    root.dataset.theme = stored() ?? (system.matches ? "dark" : "light");
    const button = document.getElementById("theme");
    if (button) button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
    root.dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => {
      try { localStorage.setItem("theme", root.dataset.theme === "dark" ? "light" : "dark"); } catch { /* private window */ }
      apply();
    });
    apply();
  });
  apply();
})();
