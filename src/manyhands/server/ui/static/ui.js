// What every page has: the theme switch, morphing that leaves people's input alone, forms that stay
// on the page, copying. Everything here is an addition: without it links and forms still work.
"use strict";
(() => {
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

  // Shows new content of the main block.
  const show = (html) => {
    const main = document.getElementById("main");
    morph(main, html, "innerHTML");
    htmx.process(main);
    document.dispatchEvent(new CustomEvent("manyhands:shown"));
    expireToast();
  };
  const TOAST_MS = 12000;
  const expireToast = () => {
    const toast = document.querySelector("#toast .toast:not([data-expires])");
    if (!toast) return;
    toast.dataset.expires = "";
    setTimeout(() => toast.remove(), TOAST_MS);
  };
  expireToast();
  window.manyhands = { show, held: false };

  // A form that comes back to this page is sent without leaving it.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form[data-quiet]") || event.defaultPrevented) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const buttons = form.querySelectorAll("button");
    buttons.forEach((button) => (button.disabled = true));
    try {
      // By its attribute: a field called "action" would hide the property.
      const answer = await fetch(form.getAttribute("action"), {
        method: "POST", body, headers: { "HX-Request": "true" },
      });
      const html = await answer.text();
      if (answer.redirected) {
        if (answer.url !== location.href) history.pushState(null, "", answer.url);
      } else {
        window.manyhands.held = true; // a question or a mistake: no refresh may take it away
      }
      show(html);
      if (!answer.redirected) document.getElementById("main").focus();
    } catch {
      buttons.forEach((button) => (button.disabled = false));
      form.removeAttribute("data-quiet");
      form.submit();
    }
  });

  // The theme, without a way to the server.
  document.getElementById("theme")?.addEventListener("submit", (event) => {
    const theme = event.submitter?.value;
    if (!theme) return;
    event.preventDefault();
    document.documentElement.dataset.theme = theme;
    document.cookie = `manyhands_theme=${theme}; Path=/ui/; Max-Age=31536000; SameSite=Lax`;
    for (const button of event.target.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === theme));
    }
    document.dispatchEvent(new CustomEvent("manyhands:theme"));
  });

  // Copying, also over plain HTTP, where browsers offer no clipboard to scripts.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
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
