// What the pages about jobs have beside what every page has: completion in the search field, and
// the number of jobs that are chosen. Without it the field and the boxes still work.
"use strict";
(() => {
  // A drawing that is broader than the screen shows the job that the page is about.
  const frame = document.querySelector(".graph-frame");
  const centre = frame?.querySelector(".node.centre")?.getBoundingClientRect();
  if (centre) {
    const place = frame.getBoundingClientRect();
    frame.scrollLeft = centre.left + centre.width / 2 - place.left - place.width / 2;
    frame.scrollTop = centre.top + centre.height / 2 - place.top - place.height / 2;
  }

  // A log that was read to its end is followed; one that somebody scrolled in stays where it is.
  const isAtEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const followed = new WeakSet();
  const follow = () => {
    for (const log of document.querySelectorAll("[data-follow]")) {
      if (!followed.has(log)) {
        followed.add(log);
        log.dataset.end = "1";
        log.addEventListener("scroll", () => (log.dataset.end = isAtEnd(log) ? "1" : ""), { passive: true });
      }
      if (log.dataset.end !== "") log.scrollTop = log.scrollHeight;
    }
  };
  document.addEventListener("manyhands:shown", follow);
  follow();

  // How many are chosen.
  const showCount = () => {
    const place = document.querySelector("[data-chosen]");
    if (!place) return;
    const all = document.getElementById("bulk-all");
    const count = document.querySelectorAll('input[name="job"]:checked').length;
    place.textContent = all?.checked ? "All that match" : count ? `${count} chosen` : "Choose jobs below";
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches?.('#bulk-all, input[name="job"], [data-checks-all]')) queueMicrotask(showCount);
  });
  document.addEventListener("manyhands:shown", showCount);

  // Completion.
  const complete = (field, list) => {
    const qualifiers = Object.entries(JSON.parse(field.dataset.qualifiers));
    const known = { state: field.dataset.states.split(","), protocol: field.dataset.protocols.split(",") };
    let chosen = -1;
    let asked = 0;

    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-controls", list.id);
    field.setAttribute("aria-expanded", "false");

    const quoted = (value) =>
      /^[^\s",\\:<>]+$/.test(value) ? value : `"${value.replace(/[\\"]/g, "\\$&")}"`;
    // The word that is being typed, up to the caret.
    const word = () => /(?:[^\s"]|"(?:[^"\\]|\\.)*"?)*$/.exec(field.value.slice(0, field.selectionStart))[0];

    const close = () => {
      asked += 1; // an answer that is on its way is not waited for any more
      list.hidden = true;
      chosen = -1;
      field.setAttribute("aria-expanded", "false");
      field.removeAttribute("aria-activedescendant");
    };
    const mark = (index) => {
      chosen = index;
      [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === index)));
      const item = list.children[index];
      if (item) {
        field.setAttribute("aria-activedescendant", item.id);
        item.scrollIntoView({ block: "nearest" });
      } else {
        field.removeAttribute("aria-activedescendant");
      }
    };
    const offer = (items) => {
      const shown = items.slice(0, 20);
      // What was marked stays marked when a later answer brings it again: the next key is Enter.
      const marked = list.children[chosen]?.dataset.text;
      list.replaceChildren(
        ...shown.map(([text, meaning], at) => {
          const item = document.createElement("li");
          item.id = `completion-${at}`;
          item.setAttribute("role", "option");
          item.setAttribute("aria-selected", "false");
          item.dataset.text = text;
          const name = document.createElement("bdi");
          name.className = "mono";
          name.textContent = text;
          item.append(name);
          if (meaning) {
            const hint = document.createElement("span");
            hint.className = "hint";
            hint.textContent = meaning;
            item.append(hint);
          }
          return item;
        }),
      );
      if (!list.children.length) return close();
      list.hidden = false;
      field.setAttribute("aria-expanded", "true");
      mark(shown.findIndex(([text]) => text === marked));
    };
    const take = (text) => {
      const caret = field.selectionStart;
      const start = caret - word().length;
      const end = text.endsWith(":") || text.endsWith(">") ? text : `${text} `;
      field.value = field.value.slice(0, start) + end + field.value.slice(caret).trimStart();
      field.setSelectionRange(start + end.length, start + end.length);
      field.focus();
      close();
      if (end.endsWith(" ")) field.dispatchEvent(new CustomEvent("manyhands:chosen", { bubbles: true }));
      else look();
    };
    const look = async () => {
      const typed = word();
      const [, name, begun] = /^([a-z]+):(.*)$/s.exec(typed) ?? [];
      const turn = ++asked;
      if (!name) {
        const all = [...qualifiers.map(([key, meaning]) => [`${key}:`, meaning]), ["age>", "since it was submitted, as in age>1h"]];
        return offer(all.filter(([text]) => text.startsWith(typed)));
      }
      const value = begun.replace(/^"|"$/g, "");
      if (known[name]) return offer(known[name].filter((text) => text.startsWith(value) && text !== value).map((text) => [`${name}:${text}`]));
      if (name !== "queue") return close();
      try {
        // Names in order, from a little before what was typed: the name itself is among them.
        const after = value.slice(0, -1);
        const answer = await fetch(`/api/queues?count=200&after=${encodeURIComponent(after)}`);
        const rows = (await answer.json()).results;
        if (turn !== asked) return;
        const fitting = rows.map((row) => row.name).filter((text) => text.startsWith(value) && text !== value);
        offer(fitting.map((text) => [`queue:${quoted(text)}`]));
      } catch {
        if (turn === asked) close();
      }
    };

    field.addEventListener("input", look);
    field.addEventListener("focus", look);
    field.addEventListener("click", look);
    field.addEventListener("blur", () => setTimeout(() => document.activeElement === field || close(), 150));
    field.addEventListener("keydown", (event) => {
      const count = list.children.length;
      if (list.hidden) {
        if (event.key === "ArrowDown") look();
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        mark((chosen + (event.key === "ArrowDown" ? 1 : count) + (chosen < 0 && event.key === "ArrowUp" ? 1 : 0)) % count);
      } else if (event.key === "Escape") {
        event.preventDefault();
        close();
      } else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) {
        event.preventDefault();
        take(list.children[chosen].dataset.text);
      } else if (event.key === "Enter") {
        close();
      }
    });
    list.addEventListener("pointerdown", (event) => {
      const item = event.target.closest("li");
      if (!item) return;
      event.preventDefault();
      take(item.dataset.text);
    });
  };

  // The field comes with the first job, which may be long after the page.
  let completed = null;
  const find = () => {
    const field = document.querySelector("input[data-qualifiers]");
    if (!field || field === completed) return;
    completed = field;
    complete(field, document.getElementById("completion"));
  };
  document.addEventListener("manyhands:shown", find);
  find();
})();
