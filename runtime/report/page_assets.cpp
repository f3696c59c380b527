// What a report looks like, and the little that its script adds: the values under the pointer.
#include "runtime/report/page_parts.h"

namespace mtl {

// The colours of lines are Okabe and Ito's, which people with any colour vision tell apart; a
// little lighter on dark ground.
const char* const kPageStyle = R"css(
:root{--bg:#fff;--ink:#1b1f24;--soft:#5c6672;--faint:#e3e7eb;--bad:#b3261e;
--bad-bg:#fdecea;
--good:#1a7f4b;--wait:#8a6100;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b4588c;--c4:#a87900;--c5:#2a9bd0;--c6:#5c6672;
--c7:#7a4fbf}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e6e9ed;--soft:#98a3af;
--faint:#2b3138;
--bad:#ff8a80;--bad-bg:#3a1f1d;--good:#5fd39a;--wait:#e6b450;
--c0:#4da9e0;--c1:#ff8b3d;--c2:#35c9a0;--c3:#e08fbd;--c4:#e6c04a;--c5:#8fd0f5;--c6:#a5b0bc;
--c7:#b597ee}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1160px;margin:0 auto;padding:36px 28px 64px}
h1{font-size:27px;line-height:1.25;margin:0;font-weight:650;letter-spacing:-.01em;
overflow-wrap:anywhere}
h2{font-size:17px;margin:40px 0 12px;font-weight:650}
h3{font-size:14px;margin:0;font-weight:600}
.sub{color:var(--soft);margin:4px 0 0;font-size:13.5px;overflow-wrap:anywhere}
.state{font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;
border:1px solid currentColor;
vertical-align:4px;margin-left:10px;color:var(--soft);white-space:nowrap}
td .state{vertical-align:0;margin:0;padding:1px 8px;font-size:12px}
.done{color:var(--good)}.failed,.lost{color:var(--bad)}.running{color:var(--c0)}
.stopped{color:var(--wait)}
.why{background:var(--bad-bg);border-left:3px solid var(--bad);padding:10px 14px;margin:18px 0 0;
border-radius:0 6px 6px 0;
overflow-wrap:anywhere;white-space:pre-wrap}
.tiles{display:flex;flex-wrap:wrap;gap:1px;margin:24px 0 0;background:var(--faint);
border:1px solid var(--faint);border-radius:8px;overflow:hidden}
.tiles div{flex:1 1 220px;background:var(--bg);padding:12px 16px 11px}
.tiles dt{color:var(--soft);font-size:12.5px}
.tiles dd{margin:1px 0 0;font-size:20px;font-weight:600;line-height:1.3}
.tiles small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}
.charts{display:grid;grid-template-columns:1fr 1fr;gap:26px 24px}
figure{margin:0;min-width:0;break-inside:avoid;position:relative}
figure.wide{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;gap:2px 16px;align-items:baseline;margin-bottom:4px}
figcaption span{color:var(--soft);font-size:12.5px}
figcaption .key{white-space:nowrap}
.now{margin-left:auto}
.key::before{content:"";display:inline-block;width:18px;border-top:2.5px solid var(--k);
vertical-align:4px;margin-right:6px}
.key.dashed::before{border-top-style:dashed}
svg{display:block;width:100%;height:auto;overflow:visible}
svg svg{overflow:hidden}
svg text{font-size:11.5px;fill:var(--soft);font-family:inherit}
.grid{stroke:var(--faint);stroke-width:1}
.axis{stroke:var(--soft);stroke-width:1;opacity:.55}
.line{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round;
vector-effect:non-scaling-stroke}
.line.faint{opacity:.32;stroke-width:1}
.line.dashed{stroke-dasharray:5 4}
.dot{stroke:var(--bg);stroke-width:1}
line.cursor{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.c0{stroke:var(--c0);--k:var(--c0)}.c1{stroke:var(--c1);--k:var(--c1)}
.c2{stroke:var(--c2);--k:var(--c2)}
.c3{stroke:var(--c3);--k:var(--c3)}.c4{stroke:var(--c4);--k:var(--c4)}
.c5{stroke:var(--c5);--k:var(--c5)}
.c6{stroke:var(--c6);--k:var(--c6)}.c7{stroke:var(--c7);--k:var(--c7)}
circle{fill:var(--k)}
#log{position:absolute;opacity:0}
.head{display:flex;justify-content:space-between;align-items:baseline}
.switch{font-size:13px;color:var(--soft);border:1px solid var(--faint);border-radius:6px;
padding:3px 10px;
cursor:pointer;user-select:none}
#log:focus-visible+.head .switch{outline:2px solid var(--c0)}
#log:checked+.head .switch{color:var(--ink);border-color:var(--soft)}
.both .log,#log:checked~.charts .both .lin{display:none}
#log:checked~.charts .both .log{display:block}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0 0 14px;font-size:13.5px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px;white-space:nowrap}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--faint);vertical-align:top}
td{overflow-wrap:anywhere}
.written{white-space:pre-wrap;width:100%}
td.n,th.n{text-align:right;white-space:nowrap}
td.t{white-space:nowrap;color:var(--soft);width:1%;padding-right:28px}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.best{font-weight:650}
.bar{display:flex;height:14px;border-radius:3px;overflow:hidden;background:var(--faint);
min-width:260px}
.bar i{background:var(--k);border-right:1px solid var(--bg)}
.swatch::before{content:"";display:inline-block;width:10px;height:10px;border-radius:2px;
background:var(--k);margin-right:6px}
details{margin:14px 0 0}
summary{cursor:pointer;font-weight:600;font-size:14px}
details.run{border-top:1px solid var(--faint);padding-top:12px}
details h2{font-size:14px;margin:20px 0 8px}
.tip{position:absolute;pointer-events:none;background:var(--bg);color:var(--ink);
border:1px solid var(--faint);border-radius:6px;
padding:6px 10px;font-size:12.5px;line-height:1.45;box-shadow:0 3px 14px rgba(0,0,0,.16);
white-space:nowrap;z-index:2}
.tip b{font-weight:600}
@media(max-width:760px){main{padding:20px 14px 40px}.charts{grid-template-columns:1fr}}
@media print{main{max-width:none;padding:0}body{font-size:12px}.switch{display:none}
h2{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
)css";

// Places on a line are turned back into values by the axes that the SVG carries.
const char* const kPageScript = R"js(
(function () {
  function numbers(text) { return text.split(' ').map(Number); }
  function made(name, text, parent) {
    var element = document.createElement(name);
    element.textContent = text;
    parent.appendChild(element);
    return element;
  }
  // unit: a factor, '|', a suffix.
  function shown(value, unit) {
    var cut = unit.indexOf('|'), scaled = value / Number(unit.slice(0, cut));
    var suffix = unit.slice(cut + 1);
    if (suffix[0] === 'e') return value.toExponential(2);
    return (Math.abs(scaled) >= 1000 ? scaled.toFixed(0) : +scaled.toPrecision(4)) + suffix;
  }
  function line_of(element) {
    return {
      name: element.dataset.name,
      colour: /c\d/.exec(element.getAttribute('class'))[0],
      places: element.getAttribute('points').split(' ').map(function (place) {
        return place.split(',').map(Number);
      })
    };
  }
  function nearest(places, x) {
    var low = 0, high = places.length - 1;
    while (high - low > 1) {
      var middle = (low + high) >> 1;
      if (places[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(places[low][0] - x) <= Math.abs(places[high][0] - x) ? places[low]
                                                                         : places[high];
  }
  document.querySelectorAll('svg.chart').forEach(function (svg) {
    var x_axis = numbers(svg.dataset.x);  // left, right, steps
    var y_axis = numbers(svg.dataset.y);  // bottom, top, lowest, highest, logarithmic
    var lines = [].map.call(svg.querySelectorAll('[data-name]'), line_of);
    var figure = svg.parentNode, tip = null, cursor = null;
    function step(x) { return (x - x_axis[0]) / (x_axis[1] - x_axis[0]) * x_axis[2]; }
    function value(y) {
      var part = (y_axis[0] - y) / (y_axis[0] - y_axis[1]), low = y_axis[2], high = y_axis[3];
      return y_axis[4] ? low * Math.pow(high / low, part) : low + part * (high - low);
    }
    function leave() {
      if (!tip) return;
      tip.remove();
      cursor.remove();
      tip = cursor = null;
    }
    svg.addEventListener('mouseleave', leave);
    svg.addEventListener('mousemove', function (event) {
      var box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
      var x = (event.clientX - box.left) / box.width * width, rows = [], at = null;
      if (x < x_axis[0] - 4 || x > x_axis[1] + 4) return leave();
      lines.forEach(function (line) {
        var place = nearest(line.places, x);
        if (Math.abs(place[0] - x) > width / 12) return;
        if (at === null || Math.abs(place[0] - x) < Math.abs(at - x)) at = place[0];
        rows.push([line, place]);
      });
      if (at === null) return leave();
      if (!tip) {
        tip = made('div', '', figure);
        tip.className = 'tip';
        cursor = document.createElementNS(svg.namespaceURI, 'line');
        cursor.setAttribute('class', 'cursor');
        svg.appendChild(cursor);
      }
      [['x1', at], ['x2', at], ['y1', y_axis[1]], ['y2', y_axis[0]]].forEach(function (end) {
        cursor.setAttribute(end[0], end[1]);
      });
      tip.textContent = '';
      made('div', 'step ' + Math.round(step(at)).toLocaleString('fr'), tip);
      rows.forEach(function (row) {
        var text = made('div', '', tip);
        made('span', row[0].name + '  ', text).className = 'key ' + row[0].colour;
        made('b', shown(value(row[1][1]), svg.dataset.unit), text);
      });
      var place = at / width * box.width, left = place + 14;
      if (left + tip.offsetWidth > box.width) left = place - 14 - tip.offsetWidth;
      tip.style.left = left + 'px';
      tip.style.top = box.top - figure.getBoundingClientRect().top + 8 + 'px';
    });
  });
})();
)js";

}  // namespace mtl
