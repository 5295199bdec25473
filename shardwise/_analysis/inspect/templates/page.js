(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);

  // The program: the lines that make values can be clicked.
  var rows = {};
  data.sources.forEach(function (source) {
    var last = 0;
    get("program").appendChild(make("h2", source.name));
    var list = make("ol", null, "code");
    source.lines.forEach(function (line) {
      if (last && line[0] !== last + 1) list.appendChild(make("li", "…", "gap"));
      last = line[0];
      var row = make("li", null, line[2] ? "used" : "");
      row.appendChild(make("b", line[0]));
      var text = make("span", line[1]);
      row.appendChild(text);
      if (line[2]) {
        row.addEventListener("click", function () { jump(source.file, line[0]); });
        text.setAttribute("role", "button");
        text.tabIndex = 0;
        text.setAttribute("aria-label", "Line " + line[0] + ": " + line[1].trim());
        text.addEventListener("keydown", function (event) {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          jump(source.file, line[0]);
        });
      }
      rows[source.file + ":" + line[0]] = row;
      list.appendChild(row);
    });
    get("program").appendChild(list);
  });
  data.steps.forEach(function (step) {
    var row = rows[step.where.file + ":" + step.where.line];
    if (row && step.kind === "collective") row.classList.add("meets");
  });

  // Numbers: all of one value with as many decimals, so that they stand below each other.
  var leaves = function (values) { return Array.isArray(values) ? values.flatMap(leaves) : [values]; };
  // Integers that a script cannot represent are strings, as are NaN and the infinities.
  var plain = function (value, digits) {
    digits = typeof digits === "number" ? digits : 4;
    if (typeof value !== "number" || Number.isSafeInteger(value)) return String(value);
    var size = Math.abs(value);
    return size < 1e-3 || size >= 1e6 ? value.toExponential(digits - 1) : String(parseFloat(value.toPrecision(digits + 1)));
  };
  var formatted = function (step, digits) {
    var all = leaves(step.held.map(function (held) { return held.values === undefined ? [] : held.values; }))
      .filter(function (value) { return typeof value === "number"; });
    var most = all.reduce(function (size, value) { return Math.max(size, Math.abs(value)); }, 0);
    var short = function (value) { return plain(value, digits); };
    if (all.every(Number.isInteger) || most >= 1e6) return short;
    var decimals = Math.max(0, digits - Math.max(0, Math.floor(Math.log10(most))));
    return function (value) {
      if (typeof value !== "number" || value === 0) return String(value);
      var shown = value.toFixed(decimals);
      return Number(shown) === 0 ? value.toExponential(digits > 4 ? digits : 1) : shown;
    };
  };
  // With digits enough to tell different parts apart, where digits can.
  var format = function (step) {
    var apart = [4, 6, 8, 10, 12, 14, 16].find(function (digits) {
      var number = formatted(step, digits);
      var texts = step.held.map(function (held) { return content(held, number).textContent; });
      return new Set(texts).size === texts.length;
    });
    return formatted(step, apart || 4);
  };
  var ROW = 8;
  var table = function (values, number) {
    var flat = function (values) { return "[" + values.map(function (v) {
      return Array.isArray(v) ? flat(v) : number(v);
    }).join(", ") + "]"; };
    if (!leaves(values).length) return make("div", "[]", "facts");
    if (!Array.isArray(values)) values = [[values]];
    else if (!Array.isArray(values[0])) {
      var long = values;
      values = [];
      for (var i = 0; i === 0 || i < long.length; i += ROW) values.push(long.slice(i, i + ROW));
    }
    if (values.length && Array.isArray(values[0]) && Array.isArray(values[0][0])) {
      return make("div", flat(values), "facts");
    }
    var made = make("table");
    values.forEach(function (line) {
      var row = make("tr");
      line.forEach(function (value) { row.appendChild(make("td", number(value))); });
      made.appendChild(row);
    });
    return made;
  };
  var content = function (held, number) {
    if (held.values !== undefined) return table(held.values, number);
    return make("div", number(held.min) + " to " + number(held.max) + ", mean " + number(held.mean) +
      ": " + held.first.map(function (one) { return number(one); }).join(", ") + ", …", "facts");
  };
  // How wide a cell must be for a row of numbers, and for the name of a device above them.
  var width = function (step, number) {
    var last = step.shape[step.shape.length - 1] || 1;
    var columns = step.shape.length > 1 ? last : Math.min(ROW, last);
    var whole = step.held.filter(function (held) { return held.values !== undefined; });
    if (!whole.length || step.shape.length > 2) return "16rem";
    var longest = leaves(whole.map(function (held) { return held.values; }))
      .reduce(function (size, value) { return Math.max(size, number(value).length); }, 1);
    var row = columns * longest + "ch + " + (0.55 * (columns - 1) + 1.35) + "rem";
    return "max(" + row + ", " + words(all[all.length - 1]).length + "ch + 1.35rem)";
  };

  // Devices.
  var names = Object.keys(data.mesh);
  var all = names.reduce(function (found, name) {
    var more = [];
    found.forEach(function (at) {
      for (var i = 0; i < data.mesh[name]; i++) {
        var one = Object.assign({}, at);
        one[name] = i;
        more.push(one);
      }
    });
    return more;
  }, [{}]);
  var words = function (at) {
    return Object.keys(at).map(function (name) { return name + " " + at[name]; }).join(", ");
  };
  var fits = function (device, at) {
    return Object.keys(at).every(function (name) { return device[name] === at[name]; });
  };
  // Each group has a colour; where there are more groups than colours, the edge tells them apart.
  var cell = function (title, held, group, number) {
    var made = make("div", null, "cell");
    made.appendChild(make("h3", title));
    if (held) {
      made.style.background = "var(--tint" + group % data.tints + ")";
      made.dataset.edge = Math.floor(group / data.tints);
      made.appendChild(content(held, number));
    } else {
      made.classList.add("not");
      made.appendChild(make("div", "does not come here", "facts"));
    }
    return made;
  };
  var devices = function (step) {
    var number = format(step);
    var grid = make("div", null, "held");
    grid.style.setProperty("--wide", width(step, number));
    if (!step.differs_over.length && !step.only) {
      grid.className = "held one";
      if (step.held.length) {
        grid.appendChild(cell(step.kind === "result" ? "the result" : "every device", step.held[0], 5, number));
      }
      return grid;
    }
    var shown = all.length <= 32 ? all : null;
    if (shown) {
      shown.forEach(function (device) {
        var group = step.held.findIndex(function (one) {
          return one.devices.some(function (at) { return fits(device, at); });
        });
        var out = step.only && !step.only.some(function (at) { return fits(device, at); });
        grid.appendChild(cell(words(device), out || group < 0 ? null : step.held[group], group, number));
      });
      return grid;
    }
    step.held.slice(0, 24).forEach(function (one, index) {
      var title = one.devices.length === 1 ? words(one.devices[0])
        : one.devices.length + " devices, first " + words(one.devices[0]);
      grid.appendChild(cell(title, one, index, number));
    });
    if (step.held.length > 24) {
      grid.appendChild(make("p", "and " + (step.held.length - 24) + " more, all different", "sw-muted rest"));
    }
    return grid;
  };
  var short = function (step) {
    var kind = step.dtype.replace(/^bfloat/, "bf").replace(/^float/, "f").replace(/^uint/, "u")
      .replace(/^int/, "i").replace(/^complex/, "c");
    return kind + "[" + step.shape.join(", ") + "]";
  };
  var show = function (step) {
    var made = make("div", null, "step");
    var head = make("h2");
    head.appendChild(make("span", step.title, step.kind === "collective" ? "meet" : ""));
    head.appendChild(make("code", short(step)));
    made.appendChild(head);
    var facts = [];
    if (step.kind === "collective") facts.push("Devices communicate here.");
    if (step.meaning) facts.push("Each device holds " + step.meaning + ".");
    if (step.differs_over.length) {
      facts.push((step.held.length > 1 ? step.held.length + " different parts" : "The same numbers everywhere")
        + " along " + step.differs_over.join(", ") + ".");
    }
    if (step.saved) facts.push("Kept for the backward pass.");
    if (facts.length) made.appendChild(make("p", facts.join(" ")));
    made.appendChild(devices(step));
    return made;
  };

  // Stepping.
  var at = 0, stops = [];
  var slide = get("slide");
  // A stop where all is kept for the backward pass is worth a step only if every value is.
  var choose = function () {
    var every = get("every").checked;
    stops = data.stops.filter(function (stop) { return every || stop.shown.length; });
    slide.max = Math.max(0, stops.length - 1);
  };
  var tell = function (box, stop, number) {
    var place = stop.file ? stop.file.split("/").pop() + ":" + stop.line : "an unknown line";
    var iteration = stop.iteration.length ? ", iteration " + stop.iteration.map(function (t) { return t + 1; }).join(", ") : "";
    var top = make("p", (number + 1) + " of " + stops.length + ": " + place + iteration, "sw-muted");
    if (stop.mark) top.appendChild(make("span", stop.mark, "pass"));
    box.appendChild(top);
    box.appendChild(make("div", data.steps[stop.steps[0]].where.text, "line"));
    (get("every").checked ? stop.steps : stop.shown).forEach(function (index) {
      box.appendChild(show(data.steps[index]));
    });
  };
  var go = function (to, quietly) {
    at = Math.max(0, Math.min(stops.length - 1, to));
    var now = get("now");
    now.textContent = "";
    Array.from(document.querySelectorAll(".here")).forEach(function (one) {
      one.classList.remove("here");
    });
    var stop = stops[at];
    if (stop) {
      var row = rows[stop.file + ":" + stop.line];
      now.dataset.pass = stop.mark;
      if (row) {
        row.classList.add("here");
        row.dataset.pass = stop.mark;
        var box = get("program");
        if (row.offsetTop < box.scrollTop || row.offsetTop > box.scrollTop + box.clientHeight - 40) {
          box.scrollTop = row.offsetTop - box.clientHeight / 2;
        }
      }
      tell(now, stop, at);
    }
    if (data.deadlock && at === stops.length - 1) {
      now.appendChild(make("div", "Deadlock. " + data.deadlock, "deadlock"));
    }
    now.scrollTop = 0;
    slide.value = at;
    get("back").disabled = at === 0;
    get("next").disabled = at >= stops.length - 1;
    if (!quietly) history.replaceState(null, "", "#" + (at + 1));
  };
  var jump = function (file, line) {
    var after = stops.findIndex(function (stop, index) {
      return index > at && stop.file === file && stop.line === line;
    });
    go(after >= 0 ? after : stops.findIndex(function (stop) {
      return stop.file === file && stop.line === line;
    }));
  };
  get("back").addEventListener("click", function () { go(at - 1); });
  get("next").addEventListener("click", function () { go(at + 1); });
  get("every").addEventListener("change", function () {
    var before = stops[at];
    choose();
    go(Math.max(0, stops.indexOf(before)));
  });
  slide.addEventListener("input", function () { go(Number(slide.value)); });
  document.addEventListener("keydown", function (event) {
    if (event.target === slide || event.ctrlKey || event.metaKey || event.altKey) return;
    var moves = { ArrowRight: 1, ArrowDown: 1, j: 1, n: 1, ArrowLeft: -1, ArrowUp: -1, k: -1, p: -1 };
    if (event.key === "Home") go(0);
    else if (event.key === "End") go(stops.length - 1);
    else if (moves[event.key]) go(at + moves[event.key]);
    else return;
    event.preventDefault();
  });
  // On paper there is nothing to step with: all of it is printed.
  window.addEventListener("beforeprint", function () {
    var now = get("now");
    now.textContent = "";
    now.dataset.pass = "";
    stops.forEach(function (stop, number) {
      var box = make("section", null, "stop");
      box.dataset.pass = stop.mark;
      tell(box, stop, number);
      now.appendChild(box);
    });
    if (data.deadlock) now.appendChild(make("div", "Deadlock. " + data.deadlock, "deadlock"));
  });
  window.addEventListener("afterprint", function () { go(at, true); });
  choose();
  go((parseInt(location.hash.slice(1), 10) || 1) - 1, true);
})();
