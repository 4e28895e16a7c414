// Keeps the page up to date: is notified of changes, fetches what is shown, morphs it in.
// One stream for each visible tab, none for a hidden one: browsers allow six connections a server.
"use strict";
(() => {
  const button = document.getElementById("live");
  const status = document.getElementById("live-status");
  const topic = document.body.dataset.topic;
  if (!topic) return;

  const POLL_MS = 5000; // while there is no stream
  const AGE_MS = 10000; // ages and times left change without any event
  const ANNOUNCE_MS = 30000;
  const REST = 20; // a page that takes long to make is fetched less often: by so many times that
  const REST_MS_MAX = 5000;
  const REST_SLOW_MS_MAX = 30000; // where the server says that it has much to look through
  let source = null;
  let paused = false;
  let fetching = null;
  let wanted = false;
  let timer = 0;
  let announcedAt = 0;
  let restUntil = 0;
  let pressed = false;

  const say = (word) => {
    button.hidden = false;
    button.dataset.now = word;
    button.querySelector(".word").textContent = word;
    button.setAttribute("aria-pressed", String(word === "paused"));
    button.title = word === "paused" ? "Resume live updates" : "Pause live updates";
  };

  // What is being pressed, sent or marked must not move or change under somebody's hands.
  const busy = () => {
    if (manyhands.isActing() || pressed) return true;
    const selection = document.getSelection();
    const main = document.getElementById("main");
    return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  };

  // Rows that come at the top would push others from under the pointer: while it rests on one, only
  // their number is shown. Nobody rests there for ever.
  const HELD_MS = 20000;
  const HELD_AGAIN_MS = 2000;
  const news = document.getElementById("news");
  let movedAt = -HELD_MS;
  let forced = false;
  const isResting = () =>
    !forced && performance.now() - movedAt < HELD_MS && document.querySelector("#main [data-moves] tbody tr:hover");
  const announce = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html").querySelectorAll("[data-moves] tbody tr");
    const count = [...fresh].filter((row) => !document.getElementById(row.id)).length;
    news.hidden = !count;
    news.textContent = `${count} new`;
  };
  news.addEventListener("click", () => {
    forced = true;
    restUntil = 0;
    refresh();
  });
  addEventListener("pointermove", () => (movedAt = performance.now()), { passive: true });

  const refresh = async () => {
    // An unfinished search is continued by its own link, not by a refresh.
    if (paused || document.hidden || manyhands.held || document.getElementById("further")) {
      wanted = false;
      return;
    }
    const started = performance.now();
    if (fetching || busy() || started < restUntil || document.querySelector(".htmx-request")) {
      wanted = true;
      return;
    }
    wanted = false;
    fetching = new AbortController();
    const here = location.href;
    const seen = manyhands.shown;
    try {
      const headers = { "HX-Request": "true", "Manyhands-Refresh": "true" };
      const answer = await fetch(here, { headers, signal: fetching.signal });
      const html = await answer.text();
      if (here !== location.href || seen !== manyhands.shown || busy()) {
        wanted = true; // it is older than what is seen, or in somebody's way
      } else if (answer.ok && isResting()) {
        wanted = true;
        announce(html);
      } else if (answer.ok && !paused && !manyhands.held) {
        news.hidden = true;
        forced = false;
        manyhands.show(html);
        if (Date.now() - announcedAt > ANNOUNCE_MS) {
          announcedAt = Date.now();
          status.textContent = `Updated at ${new Date().toLocaleTimeString()}`;
        }
      }
    } catch {
      // The stream says so, too, and tries again.
    } finally {
      fetching = null;
      const ended = performance.now();
      const most = document.querySelector("[data-slow]") ? REST_SLOW_MS_MAX : REST_MS_MAX;
      restUntil = ended + Math.min(most, REST * (ended - started));
      if (wanted && isResting()) restUntil = Math.max(restUntil, ended + HELD_AGAIN_MS);
      if (wanted && source) tick();
    }
  };

  const tick = () => {
    clearTimeout(timer);
    const streaming = source?.readyState === EventSource.OPEN;
    timer = setTimeout(async () => {
      await refresh();
      if (!source) return; // closed meanwhile
      if (source.readyState === EventSource.CLOSED) open();
      tick();
    }, wanted ? 500 : streaming ? AGE_MS : POLL_MS);
  };

  const open = () => {
    source?.close();
    source = new EventSource(`/ui/live?topic=${encodeURIComponent(topic)}`);
    source.addEventListener("hello", () => {
      say("live");
      refresh();
      tick();
    });
    source.addEventListener("change", () => {
      refresh();
      tick();
    });
    source.addEventListener("error", () => {
      if (!paused) say("reconnecting");
      tick();
    });
  };

  const close = () => {
    clearTimeout(timer);
    fetching?.abort();
    source?.close();
    source = null;
  };

  button.addEventListener("click", () => {
    paused = !paused;
    if (paused) {
      close();
      say("paused");
    } else {
      open();
    }
  });
  // Moves, too: the end of a drag over a scroll bar is not reported.
  for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
    addEventListener(kind, (event) => (pressed = event.buttons === 1), { capture: true, passive: true });
  }
  addEventListener("blur", () => (pressed = false));
  document.addEventListener("manyhands:stale", () => {
    refresh();
    if (source) tick();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!paused) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (event.persisted && !paused) open();
  });
  if (!document.hidden) open();
})();
