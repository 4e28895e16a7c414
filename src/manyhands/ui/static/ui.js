// What every page has: the theme switch, morphing that leaves people's input alone, forms that stay
// on the page, copying. Everything here is an addition: without it links and forms still work.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");

  // Refreshing. What somebody is typing, has ticked, opened or drawn must survive it.
  const kept = new Set(["INPUT", "SELECT", "TEXTAREA"]);
  const callbacks = {
    beforeNodeMorphed(before, after) {
      if (before.nodeType !== 1) return true;
      // What came of an action stays until there is other news.
      if (before.id === "toast") return after.childElementCount > 0;
      if (kept.has(before.tagName)) return before.type === "hidden";
      if (before.hasAttribute("data-keep")) {
        before.dispatchEvent(new CustomEvent("manyhands:refresh", { detail: after }));
        return false;
      }
      return true;
    },
    beforeAttributeUpdated(name, node) {
      if (name === "class" && node.classList.contains("htmx-request")) return false; // still searching
      return !(name === "open" && node.tagName === "DETAILS");
    },
  };
  const morph = (target, content, style) => {
    Idiomorph.morph(target, content, { morphStyle: style, callbacks });
  };
  htmx.defineExtension("morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap(style, target, fragment) {
      if (style !== "morph") return false;
      morph(target, fragment.children, "outerHTML");
      return [target];
    },
  });
  document.body.setAttribute("hx-ext", "morph");

  // A search that the next one replaces is no error, though htmx would write one into the console.
  let replacing = false;
  addEventListener("htmx:abort", () => (replacing = true), true);
  addEventListener("htmx:abort", () => (replacing = false));
  htmx.logger = (_, name, detail) => {
    if (replacing && detail) delete detail.error;
  };

  // Shows new content of the main block.
  const show = (html) => {
    manyhands.shown += 1;
    const main = document.getElementById("main");
    morph(main, html, "innerHTML");
    htmx.process(main);
    document.dispatchEvent(new CustomEvent("manyhands:shown"));
    expireToast();
  };
  const TOAST_MS = 12000;
  let expiry = 0;
  const expireToast = () => {
    const toast = document.querySelector("#toast .toast:not([data-expires])");
    if (!toast) return;
    toast.dataset.expires = "";
    clearTimeout(expiry); // of the one before: it may have been in the same element
    expiry = setTimeout(() => toast.remove(), TOAST_MS);
  };
  // News without the rest of a page.
  const showNews = (...news) => {
    document.getElementById("toast")?.replaceChildren(...news);
    expireToast();
  };
  const sending = new Set(); // forms whose answers are not here yet
  // `shown` counts what was shown: an answer to a question from before is older than what is seen.
  window.manyhands = { show, held: false, shown: 0, isActing: () => sending.size > 0 };
  document.addEventListener("htmx:afterSwap", () => (manyhands.shown += 1));
  expireToast();

  // A form that comes back to this page is sent without leaving it. Gives whether what is seen then
  // may be older than the answer.
  const send = async (form, submitter) => {
    const seen = manyhands.shown;
    const body = new URLSearchParams(new FormData(form, submitter));
    // By its attribute: a field called "action" would hide the property.
    const answer = await fetch(form.getAttribute("action"), {
      method: "POST", body, headers: { "HX-Request": "true" },
    });
    const html = await answer.text();
    const searching = document.querySelector(".htmx-request") !== null;
    if (!answer.redirected) {
      manyhands.held = true; // a question or a mistake: no refresh may take it away
      show(html);
      document.getElementById("main").focus();
    } else if (seen === manyhands.shown) {
      manyhands.held = false;
      if (answer.url !== location.href) history.pushState(null, "", answer.url);
      show(html);
      return searching;
    } else {
      const news = new DOMParser().parseFromString(html, "text/html").querySelector("#toast .toast");
      if (news) showNews(news);
      return true;
    }
    return false;
  };
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form[data-quiet]") || event.defaultPrevented) return;
    event.preventDefault();
    if (sending.has(form)) return; // pressed twice
    sending.add(form);
    // Not really disabled: that would take the focus away from who works by keyboard.
    const buttons = form.querySelectorAll("button");
    buttons.forEach((button) => button.setAttribute("aria-disabled", "true"));
    let stale = true;
    try {
      stale = await send(form, event.submitter);
    } catch {
      // Not sent again: what was asked for may well have been done.
      const news = document.createElement("p");
      news.className = "toast bad";
      news.textContent = "There was no answer: it may have been done or not. Look before you try again.";
      showNews(news);
    } finally {
      sending.delete(form);
      buttons.forEach((button) => button.removeAttribute("aria-disabled"));
      if (stale) document.dispatchEvent(new CustomEvent("manyhands:stale"));
    }
  });

  // Theme, rows and times, without a way to the server.
  document.addEventListener("submit", (event) => {
    const chosen = event.submitter;
    if (!event.target.matches("form[data-view]") || !chosen?.value) return;
    event.preventDefault();
    document.documentElement.dataset[chosen.name] = chosen.value;
    document.cookie = `manyhands_${chosen.name}=${chosen.value}; Path=/ui/; Max-Age=31536000; SameSite=Lax`;
    for (const button of event.target.querySelectorAll(`button[name="${chosen.name}"]`)) {
      button.setAttribute("aria-pressed", String(button === chosen));
    }
    showTimes();
    document.dispatchEvent(new CustomEvent("manyhands:theme"));
  });

  // Times as the reader's clock shows them, if that was chosen. The server writes UTC.
  const two = (value, width = 2) => String(value).padStart(width, "0");
  const showTimes = () => {
    const local = document.documentElement.dataset.time === "local";
    for (const one of document.querySelectorAll("time[datetime]")) {
      if (!local && !one.dataset.utc) continue;
      if (!one.dataset.utc) one.dataset.utc = "1";
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const shift = local ? -at.getTimezoneOffset() : 0;
      const there = new Date(at.getTime() + shift * 60000).toISOString();
      const zone = local ? `${shift < 0 ? "-" : "+"}${two(Math.trunc(Math.abs(shift) / 60))}:${two(Math.abs(shift) % 60)}` : "UTC";
      const exact = `${there.slice(0, 10)} ${there.slice(11, 19)} ${zone}`;
      one.title = exact;
      if (one.dataset.form === "instant") one.textContent = exact;
      if (one.dataset.form === "clock") one.textContent = there.slice(11, 23);
    }
  };
  document.addEventListener("manyhands:shown", showTimes);
  document.addEventListener("htmx:afterSwap", showTimes);
  showTimes();

  // One key leads to the search, unless somebody is typing.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
    event.preventDefault();
    document.getElementById("find").select();
    document.getElementById("find").focus();
  });

  // Copying, also over plain HTTP, where browsers offer no clipboard to scripts.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy], button[data-copy-from]");
    if (!button) return;
    const { copy, copyFrom } = button.dataset; // what is shown, or what an address has
    const text = copyFrom ? await (await fetch(copyFrom)).text() : document.getElementById(copy)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const word = button.textContent;
    if (word === "Copied") return; // twice: the first time brings the word back
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = word), 1500);
  });

  // One checkbox for all of a list.
  document.addEventListener("change", (event) => {
    const name = event.target.dataset?.checksAll;
    if (!name) return;
    for (const box of document.querySelectorAll(`input[type="checkbox"][name="${name}"]`)) {
      box.checked = event.target.checked;
    }
  });

  // On a narrow screen the links to where one is may be out of sight.
  for (const link of document.querySelectorAll("nav ul [aria-current]")) {
    const list = link.closest("ul").scrollWidth > link.closest("ul").clientWidth ? link.closest("ul") : link.closest("nav");
    list.scrollLeft = link.offsetLeft - list.offsetLeft - list.clientWidth / 3;
  }
})();
