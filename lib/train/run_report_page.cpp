#include "samba/train/run_report.h"

namespace samba {

const char* const kReportStyle = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--background); color: var(--text);
       font: 15px/1.5 "DejaVu Sans", Verdana, system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.4rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1rem; margin-bottom: .5rem; }
fieldset { border: 1px solid var(--grid); border-radius: 6px; padding: .1rem .7rem .3rem; display: flex; gap: .8rem; }
legend { color: var(--muted); font-size: .85rem; padding: 0 .3rem; }
label { cursor: pointer; }
#curves { position: relative; }
.chart { overflow-x: auto; }
.chart svg { display: block; width: 100%; min-width: 640px; height: auto; cursor: crosshair;
             font-family: "DejaVu Sans", Verdana, system-ui, sans-serif; }
.l { fill: none; }
.l.i-text { stroke: var(--text); } .l.i-muted { stroke: var(--muted); } .l.i-grid { stroke: var(--grid); }
.f.i-text { fill: var(--text); } .f.i-muted { fill: var(--muted); } .f.i-grid { fill: var(--grid); }
.f.i-background { fill: var(--background); }
.cursor { stroke: var(--muted); stroke-dasharray: 3 3; }
.mark { stroke: var(--background); stroke-width: 1.5; }
#values { position: absolute; pointer-events: none; background: var(--background); border: 1px solid var(--muted);
          border-radius: 6px; padding: .4rem .6rem; font-size: .8rem; max-width: 90%; box-shadow: 0 2px 8px #0003; }
#values table { font-variant-numeric: tabular-nums; }
#values th, #values td { border: 0; padding: .05rem .35rem; text-align: right; white-space: nowrap; min-width: 0; }
#values th:first-child { text-align: left; }
.hint { color: var(--muted); font-size: .85rem; margin: .2rem 0 1.5rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
[hidden] { display: none !important; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
.scroll { overflow-x: auto; margin-bottom: 1.5rem; }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem .5rem; border-bottom: 1px solid var(--grid); }
th[scope=row] { font-weight: 400; color: var(--muted); white-space: nowrap; border-left: 3px solid transparent; }
.differs th[scope=row] { border-left-color: var(--s1); }
td { overflow-wrap: anywhere; min-width: 9rem; font-variant-numeric: tabular-nums; }
details { margin: .4rem 0; }
.digest { margin: 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: color-mix(in srgb, var(--grid) 35%, var(--background)); padding: .8rem;
      border-radius: 6px; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
)css";

const char* const kReportScript = R"js('use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const values = document.getElementById('values');
  const spoken = document.getElementById('spoken');
  const curves = document.getElementById('curves');
  const svgName = 'http://www.w3.org/2000/svg';
  const form = document.querySelector('.controls');
  const chosen = (name) => form.elements[name].value;
  let at = null;  // the x value that is shown

  const shown = () => {
    const id = chosen('x') + '-' + chosen('y');
    return {id, box: document.querySelector('[data-chart="' + id + '"]'), panels: data.places[id]};
  };
  const axis = () => (chosen('x') === 'tokens' ? 'tokens' : 'step');

  // The index of the value of an ascending list that is nearest to x.
  const nearest = (list, x) => {
    let low = 0, high = list.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - list[low - 1] <= list[low] - x ? low - 1 : low;
  };
  const xOf = (panel, x) => panel.left + (x - panel.first) / (panel.last - panel.first) * (panel.right - panel.left);
  const yOf = (panel, y) =>
      panel.top + (panel.high - (panel.log ? Math.log10(y) : y)) / (panel.high - panel.low) * (panel.bottom - panel.top);
  const text = (value) => {
    if (value === null || value === undefined) return '–';
    if (Number.isInteger(value)) return value.toLocaleString('en-US').replaceAll(',', ' ');
    return Math.abs(value) < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(5));
  };
  const element = (name, attributes) => {
    const made = document.createElementNS(svgName, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const clear = () => {
    document.querySelectorAll('.hover').forEach((one) => one.remove());
    values.hidden = true;
  };

  const show = (aloud) => {
    clear();
    if (at === null) return;
    const {box, panels} = shown();
    const svg = box.firstElementChild;
    const group = element('g', {class: 'hover'});
    const rows = [['', axis() === 'step' ? 'step' : data.unit, 'loss', 'smoothed', 'lr', 'norm', 'held out']];
    let place = at;
    data.runs.forEach((run, number) => {
      const v = run.values;
      const i = nearest(v[axis()], at);
      if (number === 0) place = v[axis()][i];
      const evalAxis = axis() === 'step' ? v.evalStep : v.evalTokens;
      const e = evalAxis.length > 0 ? nearest(evalAxis, at) : -1;
      const held = e < 0 ? null : v.evalLoss[e];
      rows.push([run.name, v[axis()][i], v.loss[i], v.smoothed[i], v.lr[i], v.norm[i], held]);
      const mark = (panel, y) => {
        if (y === null || (panel.log && y <= 0)) return;
        group.append(element('circle', {class: 'mark f s' + number % 8, r: 4.5,
                                        cx: xOf(panel, v[axis()][i]), cy: yOf(panel, y)}));
      };
      mark(panels[0], v.smoothed[i]);
      mark(panels[1], v.lr[i]);
    });
    const x = xOf(panels[0], place);
    group.prepend(element('line', {class: 'cursor', x1: x, x2: x, y1: panels[0].top, y2: panels[1].bottom}));
    svg.append(group);

    const table = document.createElement('table');
    rows.forEach((row, number) => {
      const line = table.insertRow();
      row.forEach((cell, column) => {
        const made = document.createElement(number === 0 || column === 0 ? 'th' : 'td');
        if (number > 0 && column === 0) {
          const swatch = document.createElement('span');
          swatch.className = 'swatch b' + (number - 1) % 8;
          made.append(swatch, data.runs.length > 1 ? cell : '');
        } else {
          made.textContent = number === 0 ? cell : text(cell);
        }
        line.append(made);
      });
    });
    values.replaceChildren(table);
    values.hidden = false;
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const pointed = x * scale - box.scrollLeft;
    const left = pointed + 14;
    const room = curves.clientWidth - values.offsetWidth;
    values.style.left = Math.max(0, left > room ? pointed - values.offsetWidth - 14 : left) + 'px';
    values.style.top = panels[0].top * scale + 6 + 'px';
    if (aloud) {
      spoken.textContent = rows.slice(1).map((row) => row[0] + ': ' + rows[0].slice(1).map(
          (name, column) => name + ' ' + text(row[column + 1])).join(', ')).join('; ');
    }
  };

  const point = (event) => {
    const {box, panels} = shown();
    const svg = box.firstElementChild;
    const bounds = svg.getBoundingClientRect();
    const x = (event.clientX - bounds.left) / bounds.width * svg.viewBox.baseVal.width;
    const panel = panels[0];
    if (x < panel.left - 8 || x > panel.right + 8) {
      at = null;
    } else {
      at = panel.first + (x - panel.left) / (panel.right - panel.left) * (panel.last - panel.first);
    }
    show(false);
  };
  const key = (event) => {
    const list = data.runs[0].values[axis()];
    let i = at === null ? 0 : nearest(list, at);
    const far = Math.max(1, Math.floor(list.length / 20));
    if (event.key === 'ArrowRight') i += event.shiftKey ? far : 1;
    else if (event.key === 'ArrowLeft') i -= event.shiftKey ? far : 1;
    else if (event.key === 'Home') i = 0;
    else if (event.key === 'End') i = list.length - 1;
    else if (event.key === 'Escape') { at = null; clear(); return; }
    else return;
    event.preventDefault();
    at = list[Math.min(Math.max(i, 0), list.length - 1)];
    show(true);
  };
  document.querySelectorAll('.chart svg').forEach((svg) => {
    svg.setAttribute('tabindex', '0');
    svg.setAttribute('aria-describedby', 'hint');
    svg.addEventListener('pointermove', point);
    svg.addEventListener('pointerleave', () => { at = null; clear(); });
    svg.addEventListener('keydown', key);
  });
  form.addEventListener('change', () => {
    at = null;
    clear();
    document.querySelectorAll('.chart').forEach((box) => { box.hidden = box.dataset.chart !== shown().id; });
    const theme = chosen('theme');
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  });
  form.addEventListener('submit', (event) => event.preventDefault());
})();
)js";

}  // namespace samba
