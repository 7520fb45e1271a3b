// Before anything is drawn: the colours that were chosen here last time, if any were.
try {
  const chosen = localStorage.getItem("bidr-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage may be forbidden: the system's colours then */ }
