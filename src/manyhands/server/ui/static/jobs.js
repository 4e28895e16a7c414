// What the pages about jobs have beside what every page has.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
})();
