// Before the first paint: the theme that was chosen here, if one was.
(function () {
  try {
    const chosen = localStorage.getItem("headgate-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* storage is off */ }
})();
