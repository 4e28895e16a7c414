// Draws charts over what the server sent: the lines with axes, a cursor and a legend that follows.
"use strict";
(() => {
  const drawn = new Map();

  // Colours are custom properties with a light and a dark value; a canvas needs the one in effect.
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const trimmed = (value) => String(Number(value.toPrecision(3)));
  const units = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];
  const duration = (ms) => {
    for (const [unit, length] of units) if (ms >= length) return `${trimmed(ms / length)} ${unit}`;
    return `${trimmed(ms)} ms`;
  };
  const count = (value) => {
    if (value >= 1e6) return `${trimmed(value / 1e6)} M`;
    return value >= 1e4 ? `${trimmed(value / 1e3)} k` : trimmed(value);
  };

  const options = (numbers, width) => {
    const shown = numbers.unit === "ms" ? duration : count;
    const line = colour("line");
    const axis = {
      stroke: colour("dim"), grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 },
      font: "12px system-ui",
    };
    return {
      width, height: 190,
      cursor: { y: false, points: { size: 6 } },
      legend: { live: true, markers: { width: 2 } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick ? shown(tick) : "0")) },
      ],
      series: [
        { value: (_, at) => (at == null ? "" : new Date(at * 1000).toLocaleString()) },
        ...numbers.lines.map((one) => ({
          label: one.name, stroke: colour(one.colour), width: 1.6, dash: one.dashed ? [5, 4] : undefined,
          spanGaps: false, points: { show: one.values.filter((value) => value != null).length < 3 },
          value: (_, value) => (value == null ? "–" : shown(value)),
        })),
      ],
    };
  };

  const draw = (place) => {
    const numbers = JSON.parse(place.dataset.numbers);
    const values = [numbers.at, ...numbers.lines.map((one) => one.values)];
    drawn.get(place)?.destroy();
    place.replaceChildren();
    drawn.set(place, new uPlot(options(numbers, place.clientWidth || 300), values, place));
  };

  const drawAll = (anew) => {
    for (const place of drawn.keys()) if (!place.isConnected) drawn.delete(place);
    for (const place of document.querySelectorAll(".plot")) {
      if (!drawn.has(place)) {
        place.addEventListener("manyhands:refresh", (event) => {
          const numbers = event.detail.dataset.numbers;
          if (numbers === place.dataset.numbers) return;
          place.dataset.numbers = numbers;
          const fresh = JSON.parse(numbers);
          drawn.get(place).setData([fresh.at, ...fresh.lines.map((one) => one.values)]);
        });
        draw(place);
      } else if (anew) {
        draw(place);
      }
    }
  };

  drawAll();
  document.addEventListener("manyhands:shown", () => drawAll());
  document.addEventListener("manyhands:theme", () => drawAll(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const [place, plot] of drawn) plot.setSize({ width: place.clientWidth, height: 190 });
    }, 100);
  });
})();
