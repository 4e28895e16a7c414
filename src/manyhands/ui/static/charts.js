// Draws charts over what the server sent: the lines with axes, a cursor and a legend that follows.
"use strict";
(() => {
  const drawn = new Map();

  // Colours are custom properties with a light and a dark value; a canvas needs the one in effect.
  const colour = (name, share = 100) => {
    const probe = document.createElement("span");
    probe.style.color = share === 100 ? `var(--${name})` : `color-mix(in srgb, var(--${name}) ${share}%, var(--surface))`;
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

  // Times are UTC, like those that the server writes into the page, unless local ones were chosen.
  const two = (value) => String(value).padStart(2, "0");
  const isLocal = () => document.documentElement.dataset.time === "local";
  const shift = (at) => (isLocal() ? new Date(at * 1000).getTimezoneOffset() * 60 : 0);
  const shifted = (at) => new Date((at - shift(at)) * 1000);
  const time = (at) => `${two(shifted(at).getUTCHours())}:${two(shifted(at).getUTCMinutes())}`;
  const day = (at) =>
    `${two(shifted(at).getUTCDate())} ${shifted(at).toLocaleString("en", { month: "short", timeZone: "UTC" })}`;
  const instants = (_, ticks) => {
    const days = ticks.length > 1 && ticks[1] - ticks[0] >= 86400;
    return ticks.map((at) => (days || (at - shift(at)) % 86400 === 0 ? day(at) : time(at)));
  };

  // Where the cursor is, the legend shows the numbers.
  const follow = (plot) => {
    const outputs = plot.root.closest(".chart").querySelectorAll(".legend output");
    const at = plot.cursor.idx;
    const { numbers, shown } = plot.manyhands;
    outputs.forEach((output, index) => {
      const line = numbers.lines[index];
      if (at == null) output.textContent = "";
      else if (line) output.textContent = line.values[at] == null ? "–" : shown(line.values[at]);
      else output.textContent = `${day(numbers.at[at])} ${time(numbers.at[at])}${isLocal() ? "" : " UTC"}`;
    });
  };

  const MS_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5,
    18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

  // What is drawn: layers from the top one down, so that each covers the sum below it; then lines;
  // then the last step of each, dashed, if it is not over.
  const plan = (numbers) => {
    const layers = numbers.lines.filter((one) => one.stacked);
    const sums = layers.map((_, top) =>
      numbers.at.map((_, at) => {
        const parts = layers.slice(0, top + 1).map((one) => one.values[at]);
        return parts.every((part) => part == null) ? null : parts.reduce((sum, part) => sum + (part ?? 0), 0);
      }),
    );
    const drawn = [
      ...layers.map((one, top) => ({ ...one, values: sums[top] })).reverse(),
      ...numbers.lines.filter((one) => !one.stacked),
    ].map((one) => (numbers.log ? { ...one, values: one.values.map((value) => (value == null ? null : Math.max(1, value))) } : one));
    if (!numbers.open || numbers.at.length < 2) return drawn;
    const last = numbers.at.length - 1;
    return [
      ...drawn.map((one) => ({ ...one, values: one.values.map((value, at) => (at === last ? null : value)) })),
      ...drawn.map((one) => ({ ...one, stacked: false, open: true, values: one.values.map((value, at) => (at < last - 1 ? null : value)) })),
    ];
  };

  const powers = (plot) => {
    const found = [];
    for (let power = plot.scales.y.min; power <= plot.scales.y.max; power *= 10) found.push(power);
    return found;
  };

  // Where the server started: before that line it was stopped, or ran as another process.
  const markStart = (plot) => {
    const started = Number(plot.root.closest(".plot")?.dataset.started);
    const { left, top, width, height } = plot.bbox;
    const at = Math.round(plot.valToPos(started, "x", true));
    if (!(started > plot.scales.x.min && at < left + width)) return;
    const pen = plot.ctx;
    pen.save();
    pen.strokeStyle = pen.fillStyle = colour("dim");
    pen.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    pen.beginPath();
    pen.moveTo(at, top);
    pen.lineTo(at, top + height);
    pen.stroke();
    pen.font = `${11 * devicePixelRatio}px system-ui`;
    pen.textBaseline = "top";
    pen.textAlign = at > left + width / 2 ? "right" : "left";
    pen.fillText(" start ", at, top + 2 * devicePixelRatio);
    pen.restore();
  };

  const options = (numbers, width) => {
    const shown = numbers.unit === "ms" ? duration : count;
    const line = colour("line");
    const axis = {
      stroke: colour("dim"), grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 },
      font: "12px system-ui",
    };
    const scale = numbers.log
      ? { distr: 3, range: (_, low, high) => [1, Math.max(10, 10 ** Math.ceil(Math.log10(high || 10)))] }
      : { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] };
    return {
      width, height: HEIGHT,
      cursor: { y: false, points: { size: 6 } },
      legend: { show: false },
      hooks: { setCursor: [(plot) => plot.manyhands && follow(plot)], draw: [markStart] },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), isLocal() ? Intl.DateTimeFormat().resolvedOptions().timeZone : "Etc/UTC"),
      scales: { y: scale },
      axes: [
        { ...axis, values: instants, space: 60 },
        { ...axis, size: 62, splits: numbers.log ? powers : undefined, incrs: numbers.unit === "ms" && !numbers.log ? MS_STEPS : undefined, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : !tick ? "0" : numbers.log && tick >= 1e3 && tick <= 1e5 ? `${tick / 1e3} s` : shown(tick))) },
      ],
      series: [
        {},
        ...plan(numbers).map((one) => ({
          label: one.name, stroke: colour(one.colour), width: 1.6, spanGaps: false,
          dash: one.open ? [2, 4] : one.dashed ? [5, 4] : undefined,
          fill: one.stacked ? colour(one.colour, 26) : undefined,
          points: { show: one.values.filter((value) => value != null).length < (one.open ? 2 : 3) },
        })),
      ],
    };
  };
  const HEIGHT = 230;
  const columns = (numbers) => [numbers.at, ...plan(numbers).map((one) => one.values)];

  const draw = (place) => {
    const numbers = JSON.parse(place.dataset.numbers);
    drawn.get(place)?.destroy();
    place.replaceChildren();
    const plot = new uPlot(options(numbers, place.clientWidth || 300), columns(numbers), place);
    plot.manyhands = { numbers, shown: numbers.unit === "ms" ? duration : count };
    drawn.set(place, plot);
  };

  const drawAll = (anew) => {
    for (const place of drawn.keys()) if (!place.isConnected) drawn.delete(place);
    for (const place of document.querySelectorAll(".plot")) {
      if (!drawn.has(place)) {
        place.addEventListener("manyhands:refresh", (event) => {
          const numbers = event.detail.dataset.numbers;
          if (numbers === place.dataset.numbers) return;
          place.dataset.numbers = numbers;
          place.dataset.started = event.detail.dataset.started;
          const fresh = JSON.parse(numbers);
          const plot = drawn.get(place);
          const same = (one) => JSON.stringify([one.unit, one.open, one.lines.map((line) => line.name)]);
          if (same(fresh) !== same(plot.manyhands.numbers)) return draw(place);
          plot.manyhands.numbers = fresh;
          plot.setData(columns(fresh));
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
      for (const [place, plot] of drawn) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    }, 100);
  });
})();
