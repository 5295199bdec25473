(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var get = function (id) { return document.getElementById(id); };
  var make = function (tag, words, kind) {
    var made = document.createElement(tag);
    if (words !== undefined && words !== null) made.textContent = words;
    if (kind) made.className = kind;
    return made;
  };

  var theme = get("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  var label = function () { theme.textContent = dark ? "Light" : "Dark"; };
  label();
  theme.addEventListener("click", function () {
    dark = !dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    label();
  });

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
      row.appendChild(make("span", line[1]));
      if (line[2]) row.addEventListener("click", function () { jump(source.file, line[0]); });
      rows[source.file + ":" + line[0]] = row;
      list.appendChild(row);
    });
    get("program").appendChild(list);
  });
  data.steps.forEach(function (step) {
    var row = rows[step.where.file + ":" + step.where.line];
    if (row && step.kind === "collective") row.classList.add("meets");
  });

  // Numbers.
  var number = function (value) {
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return String(value);
    var size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3)
      : String(parseFloat(value.toPrecision(5)));
  };
  var flat = function (values) { return "[" + values.map(function (v) {
    return Array.isArray(v) ? flat(v) : number(v);
  }).join(", ") + "]"; };
  var table = function (values) {
    if (!Array.isArray(values)) values = [[values]];
    else if (!Array.isArray(values[0])) values = [values];
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
  var content = function (held) {
    if (held.values !== undefined) return table(held.values);
    return make("div", number(held.min) + " to " + number(held.max) + ", mean " + number(held.mean) +
      ": " + held.first.map(number).join(", ") + ", …", "facts");
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
  var cell = function (title, held, tint) {
    var made = make("div", null, "cell");
    made.appendChild(make("h3", title));
    if (held) {
      made.style.background = "var(--tint" + tint + ")";
      made.appendChild(content(held));
    } else {
      made.classList.add("not");
      made.appendChild(make("div", "does not come here", "facts"));
    }
    return made;
  };
  var devices = function (step) {
    var columns = step.shape.length > 1 ? step.shape[step.shape.length - 1] : step.shape[0] || 1;
    var grid = make("div", null, columns > 4 || step.shape.length > 2 ? "held wide" : "held");
    if (!step.differs_over.length && !step.only) {
      grid.className = "held one";
      if (step.held.length) {
        grid.appendChild(cell(step.kind === "result" ? "the result" : "every device", step.held[0], 5));
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
        grid.appendChild(cell(words(device), out || group < 0 ? null : step.held[group],
          group % data.tints));
      });
      return grid;
    }
    step.held.slice(0, 24).forEach(function (one, index) {
      var title = one.devices.length === 1 ? words(one.devices[0])
        : one.devices.length + " devices, first " + words(one.devices[0]);
      grid.appendChild(cell(title, one, index % data.tints));
    });
    if (step.held.length > 24) {
      grid.appendChild(make("p", "and " + (step.held.length - 24) + " more, all different", "soft"));
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
    var head = make("h2", step.name && step.kind !== "input" ? step.name + " = " : "");
    if (step.kind === "input") head.textContent = (step.name || "an input") + ", as in_specs split it";
    else if (step.kind === "result") head.textContent = "the whole, as out_specs put it together";
    else head.appendChild(make("span", step.operation, step.kind === "collective" ? "meet" : ""));
    head.appendChild(make("code", short(step)));
    made.appendChild(head);
    var facts = [];
    if (step.kind === "collective") facts.push("Devices meet here.");
    if (step.meaning) facts.push("Each device holds " + step.meaning + ".");
    if (step.kind !== "result") {
      facts.push(step.differs_over.length
        ? (step.held.length > 1 ? step.held.length + " different parts" : "The same numbers everywhere")
          + " along " + step.differs_over.join(", ") + "."
        : "The same on every device.");
    }
    if (step.backward) facts.push("Backward pass.");
    made.appendChild(make("p", facts.join(" ")));
    made.appendChild(devices(step));
    return made;
  };

  // Stepping.
  var at = 0;
  var slide = get("slide");
  slide.max = Math.max(0, data.stops.length - 1);
  var go = function (to, quietly) {
    at = Math.max(0, Math.min(data.stops.length - 1, to));
    var now = get("now");
    now.textContent = "";
    Array.from(document.querySelectorAll(".here")).forEach(function (one) {
      one.classList.remove("here");
    });
    var stop = data.stops[at];
    if (stop) {
      var row = rows[stop.file + ":" + stop.line];
      if (row) {
        row.classList.add("here");
        var box = get("program");
        if (row.offsetTop < box.scrollTop || row.offsetTop > box.scrollTop + box.clientHeight - 40) {
          box.scrollTop = row.offsetTop - box.clientHeight / 2;
        }
      }
      var place = stop.file ? stop.file.split("/").pop() + ":" + stop.line : "an unknown line";
      var turn = stop.turn.length ? ", turn " + stop.turn.map(function (t) { return t + 1; }).join(", ") : "";
      now.appendChild(make("p", (at + 1) + " of " + data.stops.length + ": " + place + turn, "soft"));
      var first = data.steps[stop.steps[0]];
      now.appendChild(make("div", first.where.text, "line"));
      (get("every").checked ? stop.steps : stop.shown).forEach(function (index) {
        now.appendChild(show(data.steps[index]));
      });
    }
    if (data.deadlock && at === data.stops.length - 1) {
      now.appendChild(make("div", "Deadlock. " + data.deadlock, "deadlock"));
    }
    now.scrollTop = 0;
    slide.value = at;
    get("back").disabled = at === 0;
    get("next").disabled = at >= data.stops.length - 1;
    if (!quietly) history.replaceState(null, "", "#" + (at + 1));
  };
  var jump = function (file, line) {
    var after = data.stops.findIndex(function (stop, index) {
      return index > at && stop.file === file && stop.line === line;
    });
    go(after >= 0 ? after : data.stops.findIndex(function (stop) {
      return stop.file === file && stop.line === line;
    }));
  };
  get("back").addEventListener("click", function () { go(at - 1); });
  get("next").addEventListener("click", function () { go(at + 1); });
  get("every").addEventListener("change", function () { go(at); });
  slide.addEventListener("input", function () { go(Number(slide.value)); });
  document.addEventListener("keydown", function (event) {
    if (event.target === slide || event.ctrlKey || event.metaKey || event.altKey) return;
    var moves = { ArrowRight: 1, ArrowDown: 1, j: 1, n: 1, ArrowLeft: -1, ArrowUp: -1, k: -1, p: -1 };
    if (event.key === "Home") go(0);
    else if (event.key === "End") go(data.stops.length - 1);
    else if (moves[event.key]) go(at + moves[event.key]);
    else return;
    event.preventDefault();
  });
  go((parseInt(location.hash.slice(1), 10) || 1) - 1, true);
})();
