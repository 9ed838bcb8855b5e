/* Buttons that zoom, and the inside of one segment. Without this script the page lacks nothing but these two. */
(function () {
  'use strict';

  function add(parent, name, attributes, words) {
    var made = document.createElementNS(parent.namespaceURI, name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    if (words !== undefined) made.textContent = words;
    return parent.appendChild(made);
  }

  document.querySelectorAll('figure.graph').forEach(function (figure) {
    var box = figure.querySelector('.scroll'), bar = document.createElement('p'), scale = 1;
    bar.className = 'zoom';
    [['\u2212', 'zoom out', 1 / 1.5], ['+', 'zoom in', 1.5], ['fit', 'fit to the page', 0]].forEach(function (kind) {
      var button = add(bar, 'button', {type: 'button', title: kind[1], 'aria-label': kind[1]}, kind[0]);
      button.onclick = function () {
        scale = kind[2] ? Math.min(8, Math.max(1, scale * kind[2])) : 1;
        box.firstElementChild.style.width = 100 * scale + '%';
      };
    });
    figure.insertBefore(bar, box);
  });

  var known = document.getElementById('operations'), panel = document.getElementById('inside');
  if (!known || !panel) return;
  var data = JSON.parse(known.textContent), svg = document.querySelector('#graph svg.chart');
  var choice = panel.querySelector('select'), box = panel.querySelector('.scroll');
  var told = panel.querySelector('.told'), joined = panel.querySelector('.joined');

  function named(segment, at) {
    return segment.node[at] + ' ' + data.opcodes[segment.opcode[at]] + ' on ' + data.devices[segment.device[at]];
  }

  function draw(index) {
    var segment = data.segments[index], count = segment.node.length;
    var columns = Math.max.apply(null, segment.column) + 1, lanes = Math.max.apply(null, segment.lane) / 10 + 1;
    var wide = Math.min(3000, Math.max(640, 30 * columns)), high = Math.min(620, Math.max(120, 30 * lanes));
    var across = (wide - 40) / Math.max(columns - 1, 1), down = (high - 40) / Math.max(lanes - 1, 1);
    if (across > 60) across = 60;
    var left = (wide - across * (columns - 1)) / 2, size = Math.min(1.3, Math.max(0.4, Math.min(across, down) / 13));
    var x = segment.column.map(function (column) { return left + across * column; });
    var y = segment.lane.map(function (lane) { return lanes > 1 ? 20 + down * lane / 10 : high / 2; });
    var label = 'The ' + count + ' operations of segment ' + index;
    var before = box.firstElementChild;
    box.textContent = '';
    var chart = add(svg, 'svg', {'class': 'chart', role: 'img', 'aria-label': label, viewBox: [0, 0, wide, high].join(' ')});
    chart.style.minWidth = Math.min(wide, Math.max(300, 0.7 * wide)) + 'px';
    chart.style.width = before ? before.style.width : '';
    box.appendChild(chart);
    add(chart, 'title', {}, label);
    var wires = ['', ''];
    for (var e = 0; e < segment.edges.length; e += 2) {
      var a = segment.edges[e], b = segment.edges[e + 1], middle = ((x[a] + x[b]) / 2).toFixed(1);
      var bend = x[b] - x[a] > 1.5 * across && Math.abs(y[a] - y[b]) < 1 ? y[a] - 0.4 * down : null;
      wires[+(segment.device[a] !== segment.device[b])] += 'M' + x[a].toFixed(1) + ' ' + y[a].toFixed(1) + 'C' +
        [middle, (bend === null ? y[a] : bend).toFixed(1), middle, (bend === null ? y[b] : bend).toFixed(1),
          x[b].toFixed(1), y[b].toFixed(1)].join(' ');
    }
    add(chart, 'path', {'class': 'wires', d: wires[0]});
    add(chart, 'path', {'class': 'wires crossing', 'stroke-width': 1.8, d: wires[1]});
    for (var n = 0; n < count; n++) {
      var place = 'translate(' + x[n].toFixed(1) + ' ' + y[n].toFixed(1) + ') scale(' + size.toFixed(2) + ')';
      var look = 'mark c' + segment.device[n] % data.colours;
      add(add(chart, 'path', {'class': look, transform: place, d: data.shapes[segment.device[n]]}), 'title', {}, named(segment, n));
    }
  }

  function list(index) {
    var segment = data.segments[index], body = panel.querySelector('tbody'), reads = segment.node.map(function () { return []; });
    for (var e = 0; e < segment.edges.length; e += 2) reads[segment.edges[e + 1]].push(segment.node[segment.edges[e]]);
    body.textContent = '';
    segment.node.forEach(function (node, at) {
      var row = add(body, 'tr', {});
      add(row, 'th', {scope: 'row'}, node);
      [data.opcodes[segment.opcode[at]], data.devices[segment.device[at]], reads[at].join(', ') || '\u2013'].forEach(function (words) {
        add(row, 'td', {}, words);
      });
    });
  }

  function neighbours(index) {
    joined.textContent = '';
    [[1, 0, 'Reads from '], [0, 1, ' Is read by ']].forEach(function (way) {
      var found = [];
      for (var at = 0; at < data.between.length; at += 3) {
        if (data.between[at + way[0]] === index) found.push([data.between[at + 2], data.between[at + way[1]]]);
      }
      found.sort(function (one, other) { return other[0] - one[0]; });
      if (found.length) add(joined, 'span', {}, way[2]);
      found.slice(0, 8).forEach(function (entry) {
        var button = add(joined, 'button', {type: 'button'}, entry[1] + ' (' + entry[0] + ')');
        button.onclick = function () { show(entry[1]); choice.focus(); };
      });
      if (found.length > 8) add(joined, 'span', {}, ' and ' + (found.length - 8) + ' more');
    });
  }

  function show(index) {
    choice.value = index;
    draw(index);
    list(index);
    neighbours(index);
    told.textContent = 'Segment ' + index + ': ' + data.segments[index].node.length + ' operations.';
    svg.querySelectorAll('a').forEach(function (disc) {
      disc.classList.toggle('chosen', disc.dataset.segment === String(index));
    });
    svg.querySelectorAll('[data-ends]').forEach(function (wire) {
      wire.classList.toggle('mine', wire.dataset.ends.split(' ').indexOf(String(index)) >= 0);
    });
  }

  data.segments.forEach(function (segment, index) {
    add(choice, 'option', {value: index}, index + ': ' + segment.node.length + ' operations');
  });
  choice.onchange = function () { show(+choice.value); };
  svg.querySelectorAll('a').forEach(function (disc) {
    disc.addEventListener('click', function (event) {
      event.preventDefault();
      show(+disc.dataset.segment);
      panel.scrollIntoView({block: 'nearest'});
    });
  });
  box.addEventListener('click', function (event) {
    var title = event.target.querySelector && event.target.matches('.mark') && event.target.querySelector('title');
    if (title) told.textContent = title.textContent;
  });
  panel.hidden = false;
  show(0);
})();
