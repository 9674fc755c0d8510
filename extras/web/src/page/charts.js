// Area charts over time, as SVG. Each drawing is built from scratch.
"use strict";

const charts = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const HEIGHT = 176, LEFT = 66, RIGHT = 8, TOP = 10, BOTTOM = 24;

  function element(name, attributes, text) {
    const made = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The next of 1, 2, 4, 5 or 10 times a power of ten, so that the three axis labels are round numbers.
  function roundUp(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    for (const step of [1, 2, 4, 5, 10]) if (step * power >= value) return step * power;
    return 10 * power;
  }

  // Draws `values` over `seconds` into `place`; `name` selects the colours, `unit` formats values and `time` formats seconds.
  function area(place, name, seconds, values, unit, time) {
    const points = seconds.map((at, i) => [at, values[i]]).filter(([, value]) => value !== null);
    if (points.length < 2) {
      const text = document.createElement("p");
      text.className = "empty";
      text.textContent = "Nothing to draw yet.";
      place.replaceChildren(text);
      return;
    }
    // One unit per pixel, so that letters are not distorted.
    const width = Math.max(place.clientWidth, 200);
    const first = points[0][0], last = points[points.length - 1][0];
    const top = roundUp(Math.max(1, ...points.map(([, value]) => value)));
    const x = at => LEFT + (width - LEFT - RIGHT) * (at - first) / Math.max(last - first, 1e-9);
    const y = value => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
    const latest = points[points.length - 1][1];
    svg.append(element("title", {}, `${unit(latest)} now, at most ${unit(Math.max(...points.map(p => p[1])))}`));
    for (const share of [0, 0.5, 1]) {
      const level = y(share * top);
      svg.append(element("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
      svg.append(element("text", { class: "axis", x: LEFT - 6, y: level + 4, "text-anchor": "end" }, unit(share * top)));
    }
    svg.append(element("text", { class: "axis", x: LEFT, y: HEIGHT - 6 }, time(first)));
    svg.append(element("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, time(last)));
    const line = points.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    svg.append(element("path", { class: `${name}-area`, d: `${line}L${x(last).toFixed(1)} ${y(0)}L${LEFT} ${y(0)}Z` }));
    svg.append(element("path", { class: `${name}-line`, d: line }));
    place.replaceChildren(svg);
  }

  return { area };
})();
