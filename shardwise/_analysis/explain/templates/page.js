(function () {
  "use strict";
  var all = function (selector) { return Array.from(document.querySelectorAll(selector)); };

  // The buttons of the axes: those pressed stay, all others fade; none pressed shows all.
  var tools = document.querySelector(".sw-tools");
  if (tools) {
    var chips = all(".sw-tools [data-axes]");
    tools.hidden = false;
    tools.addEventListener("click", function (event) {
      var button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.open) {
        var open = button.dataset.open === "yes";
        all(".sw-collective").forEach(function (one) { one.open = open; });
        return;
      }
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      var chosen = chips.filter(function (one) { return one.getAttribute("aria-pressed") === "true"; })
        .map(function (one) { return one.dataset.axes; });
      all(".sw-collective").forEach(function (one) {
        one.classList.toggle("sw-dim", chosen.length > 0 && !chosen.includes(one.dataset.axes));
      });
    });
  }

  // On paper nothing can be opened.
  window.addEventListener("beforeprint", function () {
    all(".sw-fold").forEach(function (one) { one.open = true; });
  });
})();
