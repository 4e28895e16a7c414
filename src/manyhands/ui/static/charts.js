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

  // All times here are UTC, like those that the server writes into the page.
  const two = (value) => String(value).padStart(2, "0");
  const time = (at) => {
    const date = new Date(at * 1000);
    return `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
  };
  const day = (at) => {
    const date = new Date(at * 1000);
    return `${two(date.getUTCDate())} ${date.toLocaleString("en", { month: "short", timeZone: "UTC" })}`;
  };
  const instants = (_, ticks) => {
    const days = ticks.length > 1 && ticks[1] - ticks[0] >= 86400;
    return ticks.map((at) => (days || at % 86400 === 0 ? day(at) : time(at)));
  };

  // Where the cursor is, the legend shows the numbers.
  const follow = (plot) => {
    const outputs = plot.root.closest(".chart").querySelectorAll(".legend output");
    const at = plot.cursor.idx;
    outputs.forEach((output, index) => {
      const series = plot.series[index + 1];
      if (at == null) output.textContent = "";
      else if (series) output.textContent = series.value(plot, plot.data[index + 1][at]);
      else output.textContent = `${day(plot.data[0][at])} ${time(plot.data[0][at])} UTC`;
    });
  };

  const MS_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5,
    18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

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
      legend: { show: false },
      hooks: { setCursor: [follow] },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, values: instants, space: 60 },
        { ...axis, size: 62, incrs: numbers.unit === "ms" ? MS_STEPS : undefined, values: (_, ticks) => ticks.map((tick) => (tick ? shown(tick) : "0")) },
      ],
      series: [
        {},
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
