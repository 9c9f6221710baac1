// Keeps the figures of a page up to date, and copies lines of code. Every page works without it.
"use strict";

const SAMPLES = 60;
const NARROW = "\u202f";

function number(count) {
  return Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, NARROW);
}

function size(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let amount = count, unit = 0;
  while (amount >= 1024 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  return unit === 0 ? `${count} B` : `${amount.toFixed(1)} ${units[unit]}`;
}

// Draws rates from left to right; the newest is at the right edge, and the largest at the top.
function draw(plot, rates) {
  const [, , width, height] = plot.getAttribute("viewBox").split(" ").map(Number);
  const most = Math.max(1, ...rates);
  const points = rates.map((rate, at) => {
    const x = width - (rates.length - 1 - at) * width / (SAMPLES - 1);
    return `${x.toFixed(1)},${(height - 2 - rate / most * (height - 4)).toFixed(1)}`;
  });
  plot.querySelector("polyline").setAttribute("points", points.join(" "));
}

class Watched {
  constructor(element) {
    this.element = element;
    this.name = element.dataset.live;
    this.rates = [];
    this.before = null;
  }

  show(figures, now) {
    this.set("events", number(figures.events));
    this.set("bytes", size(figures.bytes));
    if (this.before !== null && now > this.before.now) {
      const rate = Math.max(0, (figures.ever - this.before.ever) / (now - this.before.now));
      this.rates = [...this.rates, rate].slice(-SAMPLES);
      this.set("rate", number(rate));
      for (const plot of this.element.querySelectorAll(".plot")) draw(plot, this.rates);
    }
    this.before = { ever: figures.ever, now };
  }

  set(figure, text) {
    for (const each of this.element.querySelectorAll(`[data-figure="${figure}"]`)) {
      if (each.textContent !== text) each.textContent = text;
    }
  }
}

function watch() {
  const watched = Array.from(document.querySelectorAll("[data-live]"), (element) => new Watched(element));
  if (watched.length === 0) return;
  const query = new URLSearchParams(watched.map((each) => ["stream", each.name]));
  let source = null;
  // A page in the background is told nothing, and costs nothing.
  const follow = () => {
    if (document.hidden) {
      if (source !== null) source.close();
      source = null;
    } else if (source === null) {
      for (const each of watched) each.before = null;
      source = new EventSource(`/live?${query}`);
      source.onmessage = (event) => {
        const { now, streams } = JSON.parse(event.data);
        const found = new Map(streams.map((figures) => [figures.name, figures]));
        for (const each of watched) if (found.has(each.name)) each.show(found.get(each.name), now);
        document.body.classList.add("is-live");
      };
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

function copying() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.closest("figure").querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

watch();
copying();
