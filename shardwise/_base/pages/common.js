"use strict";
var get = function (id) { return document.getElementById(id); };
var make = function (tag, words, kind) {
  var made = document.createElement(tag);
  if (words !== undefined && words !== null) made.textContent = words;
  if (kind) made.className = kind;
  return made;
};
(function () {
  var theme = get("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  var label = function () { theme.textContent = dark ? "Light" : "Dark"; };
  theme.hidden = false;
  label();
  theme.addEventListener("click", function () {
    dark = !dark;
    document.body.dataset.theme = dark ? "dark" : "light";
    label();
  });
})();
