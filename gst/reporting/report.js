/* Buttons that zoom. Without this script the page lacks nothing else. */
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
})();
