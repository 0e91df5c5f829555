// Runs before the first paint, so that neither colours nor columns jump: the chosen theme and which panes are open.
(() => {
  const root = document.documentElement;
  const kept = (name) => {
    try {
      return localStorage.getItem(`ktitan.${name}`);
    } catch {
      return null; // storage is switched off
    }
  };
  root.dataset.theme = kept("theme") || "auto";
  root.dataset.side = innerWidth >= 900 ? kept("side") || "open" : "closed";
  root.dataset.panel = innerWidth >= 1200 ? kept("panel") || "open" : "closed";
})();
